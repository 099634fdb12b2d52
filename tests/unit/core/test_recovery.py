"""One failure, one attempt, one unit of budget; and the infrastructure's failures for free."""

from __future__ import annotations

from datetime import datetime

import pytest

from moerl_operator.api import names
from moerl_operator.core import world as w
from support.simulated_world import World, job_spec, nodes, stamp


@pytest.fixture
def world() -> World:
    found = World()
    found.run(8)
    return found


def trainer_pod(world: World, index: int = 0) -> str:
    pods = sorted(p["metadata"]["name"] for p in world.live_pods("trainer"))
    return str(pods[index])


def rollout_pod(world: World, replica: int = 0) -> str:
    return next(
        str(p["metadata"]["name"])
        for p in world.live_pods("rollout")
        if p["metadata"]["labels"][names.LABEL_REPLICA] == str(replica)
    )


def attempts(world: World, role: str = "trainer") -> list[str]:
    return [j["metadata"]["name"] for j in world.jobs(role)]


def status(world: World) -> dict:  # type: ignore[type-arg]
    assert world.job is not None
    return world.job["status"]  # type: ignore[no-any-return]


def test_one_failed_pod_restarts_its_gang_once(world: World) -> None:
    world.fail_pod(trainer_pod(world), code=1, message="loss is nan")
    world.run(6)
    assert attempts(world) == ["demo-trainer-a2"]
    assert len(world.live_pods("trainer")) == 2
    row = status(world)["roles"][0]
    assert (row["attempt"], row["restarts"]) == (2, 1)
    assert status(world)["restarts"] == 1
    failure = status(world)["lastFailure"]
    assert (failure["kind"], failure["exitCode"], failure["container"]) == ("Application", 1, "main")
    assert failure["message"] == "loss is nan"
    assert attempts(world, "rollout") == ["demo-rollout-spot-0-a1", "demo-rollout-spot-1-a1"], "rollouts go on"


def test_two_pods_failing_together_are_one_failure(world: World) -> None:
    world.fail_pod(trainer_pod(world, 0), code=1)
    world.fail_pod(trainer_pod(world, 0), code=1)
    world.run(6)
    assert attempts(world) == ["demo-trainer-a2"]
    assert status(world)["roles"][0]["restarts"] == 1


def test_condition_names_container_reason_and_exit_code(world: World) -> None:
    pod = trainer_pod(world)
    world.fail_pod(pod, code=137, reason="OOMKilled")
    world.tick(1)
    world.tick(1)
    world.reconcile()
    found = world.condition("TrainersReady")
    assert found["reason"] == "OOMKilled"
    assert f"container main of pod {pod}: OOMKilled, exit code 137" in found["message"]
    assert world.state() == "Recovering"


def test_backoff_doubles_with_every_failure() -> None:
    spec = job_spec()
    spec["trainer"]["failurePolicy"] = {"maxRestarts": 9, "backoff": {"initialSeconds": 40, "maxSeconds": 100}}
    world = World(spec)
    world.run(8)
    waits = []
    for _ in range(3):
        world.fail_pod(trainer_pod(world), code=1)
        before, count = world.now, len(attempts(world))
        world.run(60, seconds=2)
        assert count == 1
        made = world.jobs("trainer")[0]["metadata"]["creationTimestamp"]
        waits.append((datetime.fromisoformat(made) - before).total_seconds())
        world.run(3)
    assert waits == [40, 80, 100]


def test_budget_spent_fails_the_job_and_frees_everything(world: World) -> None:
    for _ in range(3):
        world.fail_pod(trainer_pod(world), code=1)
        world.run(12)
    failed = world.condition("Failed")
    assert failed["status"] == "True"
    assert failed["reason"] == "RestartsExhausted"
    assert "exit code 1" in failed["message"]
    assert not world.groups
    assert not world.pods


@pytest.mark.parametrize(
    ("how", "reason"),
    [("node", "NodeLost"), ("deleted", "PodDeleted"), ("evicted", "Evicted"), ("sigterm", "Interrupted")],
)
def test_infrastructure_restarts_for_free(world: World, how: str, reason: str) -> None:
    name = trainer_pod(world)
    pod = world.pods[name]
    if how == "node":
        world.lose_node(pod["spec"]["nodeName"])
    elif how == "deleted":
        pod["metadata"]["deletionTimestamp"] = stamp(world.now)
    elif how == "evicted":
        pod["metadata"]["deletionTimestamp"] = stamp(world.now)
        pod["status"]["conditions"].append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "Evicted",
                "message": "drained",
                "lastTransitionTime": stamp(world.now),
            }
        )
    else:
        world.fail_pod(name, code=143)
    world.reconcile()
    world.run(80, seconds=10)
    assert attempts(world) == ["demo-trainer-a2"]
    assert world.state() in ("Running", "Stalled")
    assert status(world)["roles"][0]["restarts"] == 0
    assert status(world)["lastFailure"]["kind"] == "Infrastructure"
    assert status(world)["lastFailure"]["reason"] == reason


def test_a_dead_node_ends_the_attempt_after_30_seconds_not_before(world: World) -> None:
    world.lose_node(world.pods[trainer_pod(world)]["spec"]["nodeName"])
    world.tick(20)
    made = world.reconcile()
    assert not [a for a in made.actions if isinstance(a, w.PatchChild)]
    assert made.requeue_after is not None
    assert made.requeue_after <= 10
    world.tick(10)
    ended = [a for a in world.reconcile().actions if isinstance(a, w.PatchChild)]
    assert ended[0].patch["spec"] == {"suspend": True}
    assert ended[0].patch["metadata"]["annotations"][names.ANNOTATION_ENDED] == "NodeLost"


def test_a_dead_nodes_terminating_pod_does_not_block_for_ever(world: World) -> None:
    pod = world.pods[trainer_pod(world)]
    world.lose_node(pod["spec"]["nodeName"])
    world.run(14, seconds=30)  # five minutes: the dead instance is replaced
    assert attempts(world) == ["demo-trainer-a2"]
    assert len([p for p in world.live_pods("trainer") if not p["metadata"].get("deletionTimestamp")]) == 2


def test_a_node_that_returns_in_time_changes_nothing(world: World) -> None:
    node = world.pods[trainer_pod(world)]["spec"]["nodeName"]
    world.lose_node(node)
    world.run(2)
    world.heal_node(node)
    world.run(10)
    assert attempts(world) == ["demo-trainer-a1"]


def test_one_rollout_replica_restarts_alone(world: World) -> None:
    trainers = {p["metadata"]["uid"] for p in world.live_pods("trainer")}
    world.fail_pod(rollout_pod(world, 1), code=1)
    world.run(6)
    assert attempts(world, "rollout") == ["demo-rollout-spot-0-a1", "demo-rollout-spot-1-a2"]
    assert {p["metadata"]["uid"] for p in world.live_pods("trainer")} == trainers


def test_a_replica_that_ended_well_is_started_again(world: World) -> None:
    for pod in world.live_pods("rollout"):
        pod["status"] |= {"phase": "Succeeded", "conditions": []}
    world.run(6)
    assert attempts(world, "rollout") == ["demo-rollout-spot-0-a2", "demo-rollout-spot-1-a2"]


def test_pool_above_its_floor_loses_a_replica_and_goes_on() -> None:
    spec = job_spec()
    spec["rollout"] = {
        "pools": [{"name": "spot", "minReplicas": 1, "maxReplicas": 2, "nodesPerReplica": 1, "nodes": nodes()}],
        "failurePolicy": {"maxRestarts": 0, "backoff": {"initialSeconds": 1, "maxSeconds": 1}},
    }
    world = World(spec)
    world.run(8)
    world.fail_pod(rollout_pod(world, 0), code=1)
    world.run(5)
    assert world.condition("Failed")["status"] == "False"
    assert world.state() == "Degraded"
    row = next(r for r in status(world)["roles"] if r["name"] == "spot")
    assert (row["failed"], row["ready"]) == (1, 1)
    world.fail_pod(rollout_pod(world, 1), code=1)
    world.run(5)
    assert world.condition("Failed")["reason"] == "RolloutsBelowMinimum"


@pytest.mark.parametrize(
    ("rule", "code", "reason", "message", "outcome"),
    [
        ({"exitCodes": [42], "action": "Fail"}, 42, "Error", "", "FailureRule"),
        ({"exitCodes": [42], "action": "Fail"}, 1, "Error", "", "spent"),
        ({"reason": "OOMKilled", "action": "Fail"}, 137, "OOMKilled", "", "FailureRule"),
        ({"messagePattern": "ECC", "action": "Ignore"}, 1, "Error", "uncorrectable ECC error", "free"),
        ({"exitCodes": [1], "messagePattern": "ECC", "action": "Fail"}, 1, "Error", "other", "spent"),
    ],
)
def test_rules(rule: dict[str, object], code: int, reason: str, message: str, outcome: str) -> None:
    spec = job_spec()
    spec["trainer"]["failurePolicy"]["rules"] = [rule]
    world = World(spec)
    world.run(8)
    world.fail_pod(trainer_pod(world), code=code, reason=reason, message=message)
    world.run(6)
    if outcome == "FailureRule":
        assert world.condition("Failed")["reason"] == "FailureRule"
    else:
        assert status(world)["roles"][0]["restarts"] == (1 if outcome == "spent" else 0)


def test_rules_do_not_see_the_infrastructure() -> None:
    spec = job_spec()
    spec["trainer"]["failurePolicy"]["rules"] = [{"exitCodes": [143], "action": "Fail"}]
    world = World(spec)
    world.run(8)
    world.fail_pod(trainer_pod(world), code=143)
    world.run(6)
    assert attempts(world) == ["demo-trainer-a2"]


def test_waiting_for_nodes_spends_nothing(world: World) -> None:
    world.capacity = {"us-east-1a": 0, "us-east-1b": 0}
    node = world.pods[trainer_pod(world)]["spec"]["nodeName"]
    group = world.groups["moerl-0f1e2d3c-trainer-1"]
    world.drop_node(group, node)  # Spot took it, or a person did
    world.run(60, seconds=30)
    assert status(world)["roles"][0]["restarts"] == 0
    assert world.condition("Failed")["status"] == "False"
    assert not world.live_pods("trainer")
    world.capacity = {}
    world.run(40, seconds=30)
    assert len(world.live_pods("trainer")) == 2


def test_a_failing_aws_is_no_lost_workload(world: World) -> None:
    pods = {p["metadata"]["uid"] for p in world.pods.values()}
    world.aws_error = w.AwsError("eks:ListNodegroups", "ThrottlingException", "slow down", "Retry")
    world.run(10)
    assert {p["metadata"]["uid"] for p in world.pods.values()} == pods
    assert world.condition("NodesReady")["status"] == "True", "Kubernetes still shows the nodes"
    assert "ThrottlingException" in world.condition("Degraded")["message"]
    world.fail_pod(trainer_pod(world), code=1)
    world.run(6)
    assert attempts(world) == ["demo-trainer-a2"], "recovery on nodes that are there needs no AWS"


def test_a_deleted_job_object_is_made_again_with_a_higher_attempt(world: World) -> None:
    del world.children["Job", "demo-trainer-a1"]
    world.run(4)
    assert attempts(world) == ["demo-trainer-a2"]


def test_budget_survives_a_lost_status(world: World) -> None:
    world.fail_pod(trainer_pod(world), code=1)
    world.run(6)
    assert world.job is not None
    kept = {c["type"]: c for c in world.job["status"]["conditions"]}
    world.job["status"] = {"conditions": [kept["Accepted"]]}
    world.reconcile()
    assert status(world)["roles"][0]["restarts"] == 1
    assert status(world)["roles"][0]["attempt"] == 2


def test_image_that_cannot_be_pulled_is_named_and_does_not_flap(world: World) -> None:
    pod = world.pods[rollout_pod(world)]
    texts = set()
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        pod["status"] = {
            "phase": "Pending",
            "conditions": [],
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "moerl/typo:1",
                    "state": {"waiting": {"reason": reason, "message": stamp(world.now)}},
                }
            ],
        }
        world.reconcile()
        texts.add(world.condition("RolloutsReady")["message"])
        assert world.condition("RolloutsReady")["reason"] == "ImagePullBackOff"
        world.tick(1)
    assert len(texts) == 1
    assert "image moerl/typo:1 cannot be pulled" in texts.pop()


def test_a_job_without_pods_says_where_to_look(world: World) -> None:
    for name in [n for n, p in world.pods.items() if p["metadata"]["labels"][names.LABEL_ROLE] == "trainer"]:
        del world.pods[name]
    world.now = world.now.replace(minute=30)
    world.reconcile()
    assert world.condition("TrainersReady")["reason"] == "PodsMissing"


def test_a_replica_without_a_node_waits_without_pods(world: World) -> None:
    """The others keep their nodes; a pod that fits nowhere helps nobody."""
    world.capacity = {"us-east-1a": 0, "us-east-1b": 0}
    node = world.pods[rollout_pod(world, 0)]["spec"]["nodeName"]
    world.drop_node(world.groups["moerl-0f1e2d3c-spot-1"], node)
    world.run(10)
    assert [p["metadata"]["labels"][names.LABEL_REPLICA] for p in world.live_pods("rollout")] == ["1"]
    world.capacity = {}
    world.run(6)
    assert len(world.live_pods("rollout")) == 2


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_deleted_pod_whose_program_exits_0_is_no_success(world: World, role: str) -> None:
    """The Job counts its index as done; its gang would wait for it for ever."""
    world.exit_on_sigterm = 0
    name = trainer_pod(world) if role == "trainer" else rollout_pod(world)
    world.pods[name]["metadata"]["deletionTimestamp"] = stamp(world.now)
    world.tick()  # the operator does not see it in between
    world.tick()
    world.run(8)
    expected = "demo-trainer-a2" if role == "trainer" else "demo-rollout-spot-0-a2"
    assert expected in attempts(world, role)
    assert status(world)["lastFailure"]["reason"] == "PodDeleted"
    assert status(world)["lastFailure"]["kind"] == "Infrastructure"
    assert world.state() == "Running"


def test_a_custom_trainer_of_one_pod_is_not_complete_because_somebody_deleted_it() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["train"]}]}}
    spec = job_spec(framework={"type": "Custom"})
    for key in ("algorithm", "model"):
        del spec[key]
    spec["trainer"] |= {"template": template, "nodes": nodes(1)}
    spec["rollout"]["template"] = template
    world = World(spec)
    world.exit_on_sigterm = 0
    world.run(8)
    world.pods[trainer_pod(world)]["metadata"]["deletionTimestamp"] = stamp(world.now)
    world.tick()
    world.tick()
    world.run(8)
    assert world.condition("Complete")["status"] == "False"
    assert attempts(world) == ["demo-trainer-a2"]
