"""From apply to the end of a job, and every way of stopping it in the middle."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from moerl_operator.api import names
from moerl_operator.core import world as w
from moerl_operator.core.plan import plan
from moerl_operator.manifests import environment
from support.simulated_world import World, job_spec, nodes

FINAL = json.dumps(
    {
        "iteration": 350,
        "reward": 0.93456,
        "samplesPerSecond": 46.234,
        "policyVersion": 350,
        "final": {"version": 350, "uri": "s3://b/a/350", "marker": "s3://b/a/350/COMPLETE"},
    }
)


@pytest.fixture
def running() -> World:
    world = World()
    world.run(8)
    assert world.state() == "Running"
    return world


def kinds(world: World) -> set[str]:
    return {kind for kind, _ in world.children}


def test_everything_is_made_and_then_left_alone(running: World) -> None:
    assert {g.status for g in running.groups.values()} == {"ACTIVE"}
    assert sorted(running.groups) == [f"moerl-0f1e2d3c-{key}-1" for key in ("buffer", "environment", "spot", "trainer")]
    assert {n for k, n in running.children if k == "Job"} == {
        "demo-trainer-a1",
        "demo-rollout-spot-0-a1",
        "demo-rollout-spot-1-a1",
    }
    writes = running.writes
    for _ in range(5):
        made = running.reconcile()
        assert made.actions == ()
        running.tick(30)
    assert running.writes == writes


@pytest.mark.parametrize("ticks", range(9))
def test_the_policy_is_pure(ticks: int) -> None:
    """Equal snapshots give equal plans, and the snapshot is as it was."""
    world = World()
    world.run(ticks)
    if ticks == 8:
        world.fail_pod(world.live_pods("trainer")[0]["metadata"]["name"])
        world.tick()
    snapshot = world.snapshot()
    before = copy.deepcopy(snapshot)
    assert plan(snapshot) == plan(before)
    assert snapshot == before


def test_all_conditions_are_there_at_first_sight() -> None:
    world = World()
    made = world.decide()  # asks for the dry run
    assert made.dry_run
    assert made.actions == ()
    assert made.status is not None
    found = {c["type"]: c["status"] for c in made.status["conditions"]}
    assert len(found) == 14
    assert set(found.values()) == {"Unknown"}


def test_trainer_nodes_are_bought_before_the_others() -> None:
    world = World()
    world.run(1)
    world.reconcile()
    assert [a.name for a in world.log if isinstance(a, w.ScaleNodeGroup)] == ["moerl-0f1e2d3c-trainer-1"]


def test_trainer_waits_for_all_its_nodes() -> None:
    world = World()
    world.capacity = {"us-east-1a": 1, "us-east-1b": 0}
    world.run(6)
    assert not world.jobs("trainer")
    assert world.state() == "Provisioning"
    assert world.condition("NodesReady")["reason"] == "InsufficientCapacity"
    assert "1 of 2 nodes" in world.condition("NodesReady")["message"]


def test_complete_needs_the_jobs_end_and_the_final_marker(running: World) -> None:
    running.succeed_pods("trainer")
    running.run(2)
    assert running.condition("Complete")["status"] == "False"
    assert running.state() == "Finishing"
    running.report(FINAL)
    running.run(1)
    assert running.condition("Complete")["status"] == "True"
    assert running.job is not None
    assert running.job["status"]["finalPolicy"] == "s3://b/a/350"
    assert running.job["status"]["display"]["iteration"] == "350/350"
    assert running.job["status"]["display"]["reward"] == "0.93"
    running.run(8)
    assert not running.groups
    assert not running.templates
    assert not kinds(running) & {"Job", "Deployment", "StatefulSet"}
    assert running.job["metadata"]["finalizers"] == []
    assert "costPerHourUsd" not in running.job["status"]


def test_a_trainer_that_ends_without_a_final_version_has_failed(running: World) -> None:
    running.succeed_pods("trainer")
    running.run(20)
    assert "demo-trainer-a2" in {n for _, n in running.children}
    assert running.job is not None
    assert running.job["status"]["lastFailure"]["reason"] == "FinalVersionMissing"


def test_custom_framework_is_complete_with_its_trainer_job() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["train"]}]}}
    spec = job_spec(framework={"type": "Custom"})
    for key in ("algorithm", "model"):
        del spec[key]
    spec["trainer"]["template"] = spec["rollout"]["template"] = template
    world = World(spec)
    world.run(8)
    world.succeed_pods("trainer")
    world.run(2)
    assert world.condition("Complete")["status"] == "True"


def test_nothing_is_made_after_the_end(running: World) -> None:
    running.report(FINAL)
    running.succeed_pods("trainer")
    running.run(3)
    log = len(running.log)
    running.children.clear()  # somebody deletes everything
    running.run(5)
    assert not [a for a in running.log[log:] if isinstance(a, w.CreateChild | w.ApplyChild | w.CreateNodeGroup)]
    assert running.state() == "Complete"


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 4, 8])
def test_deletion_at_any_moment_leaves_nothing(ticks: int) -> None:
    world = World()
    world.run(ticks)
    if ticks == 0:
        world.reconcile()  # in the middle of the creation of groups
    world.delete()
    world.run(10)
    assert world.job is None
    assert not world.groups
    assert not world.templates


def test_a_crash_between_template_and_group_leaves_nothing() -> None:
    world = World()
    world.reconcile(crash_after=14)
    world.templates.add("moerl-0f1e2d3c-spot-1")  # the group was not made any more
    world.delete()
    world.run(5)
    assert world.job is None
    assert not world.templates


def test_deletion_waits_while_aws_cannot_be_asked(running: World) -> None:
    running.aws_error = w.AwsError("eks:ListNodegroups", "ExpiredTokenException", "expired", "Retry")
    running.delete()
    running.run(5)
    assert running.job is not None
    assert running.job["metadata"]["finalizers"] == [names.FINALIZER]
    assert running.condition("NodesReady")["reason"] == "ExpiredTokenException"
    assert running.state() == "Terminating"
    running.aws_error = None
    running.run(5)
    assert running.job is None


def test_pods_end_before_their_nodes(running: World) -> None:
    running.delete()
    made = running.reconcile()
    assert {type(a) for a in made.actions} == {w.DeleteChild}
    running.tick()
    assert {type(a) for a in running.reconcile().actions} == {w.DeleteNodeGroup}


def test_suspend_gives_everything_back_and_resume_goes_on(running: World) -> None:
    running.edit(lambda spec: spec.update(suspend=True))
    running.run(6)
    assert running.state() == "Suspended"
    assert not running.nodes
    assert not running.pods
    assert running.job is not None
    assert running.job["metadata"]["finalizers"] == [names.FINALIZER]
    assert running.reconcile().actions == ()
    running.edit(lambda spec: spec.update(suspend=False))
    running.run(8)
    assert running.state() == "Running"
    assert [j["metadata"]["name"] for j in running.jobs("trainer")] == ["demo-trainer-a2"]
    assert len(running.made_groups) == 4, "the groups were used again"
    assert running.job["status"]["roles"][0]["restarts"] == 0


def test_suspend_twice_quickly(running: World) -> None:
    for on in (True, False, True, False):
        running.edit(lambda spec, on=on: spec.update(suspend=on))
        running.reconcile()
    running.run(10)
    assert running.state() == "Running"
    assert len(running.live_pods("trainer")) == 2


def test_a_job_that_starts_suspended_buys_nothing() -> None:
    world = World(job_spec(suspend=True))
    world.run(5)
    assert not world.made_groups
    assert world.state() == "Suspended"
    assert not world.pods


def test_edit_while_suspended_makes_new_children_and_groups(running: World) -> None:
    running.edit(lambda spec: spec.update(suspend=True))
    running.run(5)
    template = {"spec": {"containers": [{"name": "main", "image": "new"}]}}
    running.edit(lambda spec: spec["trainer"].update(template=template, nodes=nodes(2, "c7i.xlarge")))
    running.edit(lambda spec: spec["environment"].update(template=template))
    running.edit(lambda spec: spec.update(suspend=False))
    running.run(10)
    assert running.state() == "Running"
    assert "moerl-0f1e2d3c-trainer-2" in running.groups
    assert "moerl-0f1e2d3c-trainer-1" not in running.groups
    job = running.children["Job", "demo-trainer-a2"]
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "new"
    made = running.children["Deployment", "demo-environment"]
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "new"


def test_pool_grows_and_shrinks_from_its_end(running: World) -> None:
    running.edit(lambda spec: spec["rollout"]["pools"][0].update(replicas=4))
    running.run(6)
    assert len(running.live_pods("rollout")) == 4
    before = {p["metadata"]["uid"] for p in running.live_pods("rollout")}
    running.edit(lambda spec: spec["rollout"]["pools"][0].update(replicas=1))
    running.run(6)
    left = running.live_pods("rollout")
    assert [p["metadata"]["labels"][names.LABEL_REPLICA] for p in left] == ["0"]
    assert left[0]["metadata"]["uid"] in before, "the replica that stays was not touched"
    assert running.groups["moerl-0f1e2d3c-spot-1"].desired == 1
    assert left[0]["spec"]["nodeName"] in running.nodes, "its node was not the one given back"


def test_replicas_of_a_service_are_patched_not_rendered_again(running: World) -> None:
    running.edit(lambda spec: spec["environment"].update(replicas=3))
    patches = [a for a in running.reconcile().actions if isinstance(a, w.PatchChild)]
    assert [(p.name, p.patch) for p in patches] == [("demo-environment", {"spec": {"replicas": 3}})]


def test_ttl_deletes_the_job_when_its_time_is_over() -> None:
    world = World(job_spec(runPolicy={"ttlSecondsAfterFinished": 300}))
    world.run(8)
    world.report(FINAL)
    world.succeed_pods("trainer")
    world.run(10)
    assert world.state() == "Complete"
    left = world.reconcile().requeue_after
    assert left is not None
    assert 0 < left <= 300
    world.tick(left)
    world.run(2)
    assert world.job is None


@pytest.mark.parametrize(
    ("policy", "seconds", "reason"),
    [
        ({"activeDeadlineSeconds": 600}, 600, "DeadlineExceeded"),
        ({"provisioningDeadlineSeconds": 600}, 600, "ProvisioningDeadlineExceeded"),
    ],
)
def test_deadlines(policy: dict[str, int], seconds: int, reason: str) -> None:
    world = World(job_spec(runPolicy=policy))
    world.capacity = {"us-east-1a": 0, "us-east-1b": 0}
    world.run(3)
    assert world.condition("Failed")["status"] == "False"
    world.tick(seconds)
    world.run(1)
    assert world.condition("Failed")["reason"] == reason
    world.run(6)
    assert not world.groups


def test_active_deadline_wakes_the_plan_up(running: World) -> None:
    running.edit(lambda spec: spec.update(runPolicy={"activeDeadlineSeconds": 100}))
    left = running.reconcile().requeue_after
    assert left is not None
    assert left <= 100


def test_stalled_is_said_but_does_not_end_the_job(running: World) -> None:
    running.edit(lambda spec: spec.update(runPolicy={"progressDeadlineSeconds": 100}))
    running.reconcile()
    running.now += timedelta(seconds=120)
    running.reconcile()
    assert running.state() == "Stalled"
    assert running.condition("Progressing")["reason"] == "ProgressDeadlineExceeded"
    running.report(json.dumps({"iteration": 5, "lastProgressTime": running.now.isoformat()}))
    running.reconcile()
    assert running.state() == "Running"


def test_retained_groups_are_handed_to_their_class() -> None:
    spec = job_spec()
    spec["trainer"]["nodes"] = nodes(2, capacityType="Reserved", capacityReservation="cr-0a")
    world = World(spec, allowedReservations=["cr-0a"])
    world.run(8)
    world.report(FINAL)
    world.succeed_pods("trainer")
    world.run(8)
    assert world.retained == ["moerl-0f1e2d3c-trainer-1"]
    group = world.groups["moerl-0f1e2d3c-trainer-1"]
    assert group.tags[names.TAG_OWNER] == "class/default"
    assert names.TAG_JOB not in group.tags
    assert group.desired == 2
    assert world.job is not None
    assert world.job["metadata"]["finalizers"] == []


def test_scale_to_zero_keeps_the_group_until_the_job_is_deleted() -> None:
    spec = job_spec()
    spec["trainer"]["nodes"] = nodes(2, onFinish="ScaleToZero")
    world = World(spec)
    world.run(8)
    world.report(FINAL)
    world.succeed_pods("trainer")
    world.run(8)
    assert list(world.groups) == ["moerl-0f1e2d3c-trainer-1"]
    assert not world.nodes
    assert world.job is not None
    assert world.job["metadata"]["finalizers"] == [names.FINALIZER]
    assert world.reconcile().actions == ()
    world.delete()
    world.run(4)
    assert not world.groups
    assert world.job is None


def test_cleanup_none_keeps_cpu_pods_but_gives_gpus_back() -> None:
    spec = job_spec(runPolicy={"cleanupPolicy": "None"})
    spec["rollout"]["pools"][0]["nodes"] = nodes(kind="g6.xlarge")
    world = World(spec)
    world.run(8)
    world.report(FINAL)
    world.succeed_pods("trainer")
    world.run(8)
    assert sorted(world.groups) == [f"moerl-0f1e2d3c-{key}-1" for key in ("buffer", "environment", "trainer")]
    assert not world.jobs("rollout")
    assert world.jobs("trainer")


def test_a_namesakes_children_are_waited_for() -> None:
    world = World()
    world.reconcile()
    world.children.clear()
    made = plan(replace(world.snapshot(), foreign=("Job/demo-trainer-a1",)))
    assert not [a for a in made.actions if isinstance(a, w.CreateChild | w.ApplyChild)]
    assert made.status is not None
    degraded = next(c for c in made.status["conditions"] if c["type"] == "Degraded")
    assert degraded["reason"] == "NameTaken"
    assert "demo-trainer-a1" in degraded["message"]


def test_an_operator_that_renders_something_new_changes_nothing(
    running: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = environment.identity
    monkeypatch.setattr(environment, "identity", lambda role: [*old(role), {"name": "NEW", "value": "1"}])
    assert running.reconcile().actions == ()
    running.edit(lambda spec: spec["environment"].update(replicas=2))
    running.reconcile()
    made = running.children["Deployment", "demo-environment"]
    assert "NEW" not in json.dumps(made), "a new count must not roll what is there"
    assert "NEW" not in json.dumps(running.children["Job", "demo-trainer-a1"])


def test_a_trainer_that_runs_gets_its_rights_before_anything_that_may_be_refused(running: World) -> None:
    """The first refusal ends a round, so what comes after a Job that a quota refuses for ever would never be made."""
    gone = [key for key in running.children if key[0] in ("Role", "RoleBinding")]
    lost = next(key for key in running.children if key[0] == "Job" and "rollout" in key[1])
    uid = running.children[lost]["metadata"]["uid"]
    running.pods = {n: p for n, p in running.pods.items() if p["metadata"]["ownerReferences"][0]["uid"] != uid}
    for key in (*gone, lost):
        del running.children[key]
    order = [a.obj["kind"] for a in running.decide().actions if isinstance(a, w.CreateChild | w.ApplyChild)]
    assert order == ["Role", "RoleBinding", "Job"]
