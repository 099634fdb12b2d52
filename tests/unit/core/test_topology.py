"""Node groups: made empty, filled, given up, retired; and what is said when AWS does not do it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from moerl_operator.api import names
from moerl_operator.core import world as w
from moerl_operator.core.capacity import trouble
from moerl_operator.core.plan import plan
from support.simulated_world import FACTS, UID, World, job_spec, nodes

TRAINER_1, TRAINER_2 = (f"moerl-0f1e2d3c-trainer-{n}" for n in (1, 2))


def created(world: World) -> list[w.NodeGroupSpec]:
    return [a.spec for a in world.log if isinstance(a, w.CreateNodeGroup)]


def gpu_spec(transport: str = "EFAGDA", **pool: object) -> dict:  # type: ignore[type-arg]
    spec = job_spec(framework={"type": "Custom"})
    for key in ("algorithm", "model"):
        del spec[key]
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["x"]}]}}
    spec["communication"] = {"expertParallel": {"backend": "DeepEP", "transport": transport, "onMismatch": "Fail"}}
    spec["trainer"] |= {"nodes": nodes(2, "p5en.48xlarge"), "template": template}
    spec["rollout"] |= {"template": template}
    spec["rollout"]["pools"][0] |= {"nodes": nodes(kind="p5en.48xlarge", capacityType="Spot")} | pool
    return spec


def test_a_new_group_is_wished_for_completely() -> None:
    world = World(gpu_spec(), userData="echo hi", releaseVersion="1.34.1-20261101")
    world.reconcile()
    spec = created(world)[0]
    assert spec.name == TRAINER_1
    assert (spec.subnet, spec.zone) == ("subnet-0000000000000000a", "us-east-1a")
    assert spec.labels == {"role.moerl.dev/trainer": TRAINER_1}
    assert spec.taints == ((names.TAINT_DEDICATED, "0f1e2d3c"),)
    assert spec.maximum == 2
    assert (spec.efa_interfaces, spec.network_cards, spec.hugepages_2mi) == (16, 16, 5128)
    assert spec.ami_type == "AL2023_x86_64_NVIDIA"
    assert spec.release_version == "1.34.1-20261101"
    assert spec.user_data == "echo hi"
    assert spec.tags[names.TAG_OWNER] == f"job/{UID}"
    assert spec.tags[names.TAG_INSTALLATION] == "test"
    assert spec.tags[names.TAG_JOB] == "ml/demo"
    pool = created(world)[1]
    assert pool.labels == {"pool.moerl.dev/spot": pool.name}
    assert pool.capacity_type == "Spot"


def test_ami_release_is_resolved_once() -> None:
    world = World(job_spec(), releaseVersion="1.34.1-20261101")
    world.run(3)
    world.classes["default"]["spec"]["releaseVersion"] = "1.34.2-20261201"
    world.capacity = {"us-east-1a": 0}
    world.run(4)
    assert {s.release_version for s in created(world)} == {"1.34.1-20261101"}


def test_a_release_that_aws_chose_is_kept_for_the_jobs_later_groups() -> None:
    world = World()
    world.run(4)
    assert world.job is not None
    assert world.job["status"]["resolvedAmi"] == ["default=@1.34.1-20261001"]
    world.newest_release = "1.34.2-20261201"
    world.edit(lambda spec: spec.update(suspend=True))
    world.run(5)
    world.edit(lambda spec: spec["trainer"].update(nodes=nodes(2, "c7i.xlarge")))
    world.edit(lambda spec: spec.update(suspend=False))
    world.run(4)
    assert created(world)[-1].release_version == "1.34.1-20261001"


def test_a_running_gang_is_never_given_back() -> None:
    """A node that is not ready any more, or cordoned, is no reason to take the others from running pods."""
    world = World(gangHoldSeconds=60)
    world.run(8)
    busy = world.live_pods("trainer")[0]["spec"]["nodeName"]
    world.nodes[busy]["spec"]["unschedulable"] = True
    world.run(20, seconds=30)
    assert world.groups[TRAINER_1].desired == 2
    assert world.condition("NodesReady")["status"] == "True"
    assert [j["metadata"]["name"] for j in world.jobs("trainer")] == ["demo-trainer-a1"]


def test_every_group_has_one_subnet_and_a_taint_and_owner_tags() -> None:
    world = World()
    world.run(3)
    for spec in created(world):
        assert spec.taints == ((names.TAINT_DEDICATED, "0f1e2d3c"),)
        assert spec.tags[names.TAG_OWNER] == f"job/{UID}"
        assert isinstance(spec.subnet, str)


def test_autoscaler_tags_come_off_with_the_first_scale_up() -> None:
    world = World()
    world.run(1)
    snap = world.snapshot()
    marked = tuple(replace(g, autoscaler_tags=True) for g in snap.aws.node_groups)
    made = plan(replace(snap, aws=replace(snap.aws, node_groups=marked)))
    scale = [a for a in made.actions if isinstance(a, w.ScaleNodeGroup)]
    assert [(s.name, s.desired, s.drop_autoscaler_tags) for s in scale] == [(TRAINER_1, 2, True)]


def test_no_capacity_moves_to_the_next_zone_and_buys_nowhere_twice() -> None:
    world = World()
    world.capacity = {"us-east-1a": 0}
    for _ in range(14):
        world.reconcile()
        buying = [g for g in world.groups.values() if g.spec.group_key == "trainer" and g.desired]
        assert len(buying) <= 1
        world.tick()
    assert TRAINER_1 not in world.groups, "the degraded group is deleted once empty"
    assert world.groups[TRAINER_2].spec.zone == "us-east-1b"
    assert world.groups[TRAINER_2].desired == 2
    assert world.jobs("trainer")[0]["spec"]["template"]["spec"]["nodeSelector"] == {"role.moerl.dev/trainer": TRAINER_2}
    assert world.state() == "Running"


def test_numbers_are_never_used_again() -> None:
    world = World()
    world.capacity = {"us-east-1a": 0, "us-east-1b": 0}
    world.run(150, seconds=30)
    numbers = [int(s.name.rpartition("-")[2]) for s in created(world) if s.group_key == "trainer"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 3 < len(numbers) < 20, "tours of the zones slow down"


def test_in_the_only_zone_auto_scaling_goes_on_trying() -> None:
    world = World(job_spec(), subnets=[{"id": "subnet-0000000000000000a", "zone": "us-east-1a"}])
    world.capacity = {"us-east-1a": 0}
    world.run(20, seconds=60)
    assert world.groups[TRAINER_1].desired == 2
    assert world.condition("NodesReady")["reason"] == "InsufficientCapacity"
    assert "InsufficientInstanceCapacity" in world.condition("NodesReady")["message"]


def test_an_incomplete_gang_is_given_back_after_the_hold_time() -> None:
    world = World(job_spec(), gangHoldSeconds=120)
    world.capacity = {"us-east-1a": 1}
    world.run(5)
    assert len(world.groups[TRAINER_1].instances) == 1
    assert TRAINER_2 not in world.groups
    world.run(30, seconds=10)
    assert TRAINER_1 not in world.groups
    assert len(world.groups[TRAINER_2].instances) == 2


def test_reserved_capacity_is_held() -> None:
    spec = job_spec()
    spec["trainer"]["nodes"] = nodes(2, capacityType="Reserved", capacityReservation="cr-0a")
    world = World(spec, gangHoldSeconds=120, allowedReservations=["cr-0a"])
    world.capacity = {"us-east-1a": 1}
    world.run(40, seconds=10)
    assert len(world.groups[TRAINER_1].instances) == 1
    assert TRAINER_2 not in world.groups


def test_zones_of_the_user_come_first() -> None:
    spec = job_spec()
    spec["trainer"]["nodes"] = nodes(2, zones=["us-east-1b"])
    world = World(spec)
    world.reconcile()
    assert created(world)[0].zone == "us-east-1b"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (w.AwsError("eks:CreateNodegroup", "ResourceLimitExceededException", "30 groups", "Quota"), "NodeGroupQuota"),
        (
            w.AwsError("eks:CreateNodegroup", "AccessDeniedException", "not authorized", "Terminal"),
            "AccessDeniedException",
        ),
        (
            w.AwsError("ec2:CreateLaunchTemplate", "InvalidLaunchTemplateName.MalformedException", "x", "Terminal"),
            "InvalidLaunchTemplateNameMalformedException",
        ),
    ],
)
def test_refusals_are_told_with_code_and_message(error: w.AwsError, reason: str) -> None:
    world = World()
    world.refuse = error
    world.run(3)
    found = world.condition("NodesReady")
    assert (found["status"], found["reason"]) == ("False", reason)
    assert error.message in found["message"]
    world.refuse = None
    world.run(10)
    assert world.state() == "Running"


def test_after_a_refusal_nothing_is_sent_before_its_time() -> None:
    world = World()
    world.refuse = w.AwsError("eks:CreateNodegroup", "Throttling", "slow down", "Retry")
    world.run(2)
    snap = world.snapshot()
    held = plan(replace(snap, aws=replace(snap.aws, retry_at=world.now + timedelta(seconds=7))))
    assert not [a for a in held.actions if isinstance(a, w.CreateNodeGroup)]
    assert held.requeue_after is not None
    assert held.requeue_after <= 7


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "EndpointConnectionError"])
def test_unreachable_aws_or_wrong_credentials(code: str) -> None:
    world = World()
    world.aws_error = w.AwsError("eks:ListNodegroups", code, "cannot", "Retry")
    made = world.reconcile()
    assert made.requeue_after is not None
    assert made.actions == ()
    assert world.condition("NodesReady")["reason"] == code
    assert world.condition("NodesReady")["status"] == "False"
    assert world.condition("Accepted")["status"] == "Unknown", "instance types cannot be judged yet"
    world.aws_error = None
    world.run(8)
    assert world.state() == "Running"


def test_a_create_failed_group_is_replaced_unless_it_would_fail_again() -> None:
    world = World()
    world.run(1)
    world.groups[TRAINER_1].status = "CREATE_FAILED"
    snap = world.snapshot()

    def with_issue(code: str) -> w.Plan:
        groups = tuple(
            replace(g, status="CREATE_FAILED", issues=((code, "why"),)) if g.name == TRAINER_1 else g
            for g in snap.aws.node_groups
        )
        return plan(replace(snap, aws=replace(snap.aws, node_groups=groups)))

    again = with_issue("AsgInstanceLaunchFailures")
    assert [a.spec.name for a in again.actions if isinstance(a, w.CreateNodeGroup)] == [TRAINER_2]
    for_ever = with_issue("IamNodeRoleNotFound")
    assert not [a for a in for_ever.actions if isinstance(a, w.CreateNodeGroup)]
    assert for_ever.status is not None
    nodes_ready = next(c for c in for_ever.status["conditions"] if c["type"] == "NodesReady")
    assert "IamNodeRoleNotFound: why" in nodes_ready["message"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("InsufficientInstanceCapacity - We currently do not have sufficient p5en.48xlarge capacity", "Capacity"),
        ("Unsupported - ... is not supported in your requested Availability Zone (us-east-1b).", "Capacity"),
        ("VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit of 0", "Quota"),
        ("MaxSpotInstanceCountExceeded - Max spot instance count exceeded", "Quota"),
        ("Client.InternalError: Client error on launch", "Other"),
    ],
)
def test_troubles_are_sorted(said: str, kind: str) -> None:
    found = trouble(w.NodeGroupObservation("g", "ACTIVE", {}, failures=(said,)))
    assert found is not None
    assert found[0] == kind


def test_the_maximum_is_raised_when_a_pool_grows() -> None:
    world = World()
    world.run(8)
    world.edit(lambda spec: spec["rollout"]["pools"][0].update(replicas=5))
    scale = [a for a in world.reconcile().actions if isinstance(a, w.ScaleNodeGroup)]
    assert [(s.desired, s.maximum) for s in scale] == [(5, 5)]


def test_replicas_start_as_their_nodes_come() -> None:
    world = World(gpu_spec(replicas=3, nodesPerReplica=2))
    world.capacity = {"us-east-1a": 2 + 3}  # the trainer's two, and one replica and a half
    world.run(6)
    assert [j["metadata"]["name"] for j in world.jobs("rollout")] == ["demo-rollout-spot-0-a1"]
    world.capacity = {"us-east-1a": 1}
    world.run(4)
    assert len(world.jobs("rollout")) == 2
    assert all(j["spec"]["completions"] == 2 for j in world.jobs("rollout"))


def test_one_local_node_stands_for_all_instances() -> None:
    spec = job_spec()
    for part in (spec["trainer"], spec["rollout"]["pools"][0], spec["environment"], spec["buffer"]):
        part["nodes"] = part["nodes"] | {"instanceTypes": ["local"]}
    world = World(spec)
    world.run(6)
    for group in world.groups.values():
        for name in group.instances[1:]:
            del world.nodes[name]
    world.run(6)
    assert world.condition("NodesReady")["status"] == "True"
    assert len(world.jobs("rollout")) == 2


def test_existing_nodes_need_neither_aws_nor_a_finalizer() -> None:
    existing = {
        "nodeClassName": "default",
        "provisioner": "Existing",
        "nodeSelector": {"pool": "ml"},
        "capacityType": "OnDemand",
    }
    spec = job_spec()
    spec["trainer"]["nodes"] = existing | {"count": 2}
    for part in (spec["rollout"]["pools"][0], spec["environment"], spec["buffer"]):
        part["nodes"] = existing
    world = World(spec)
    for n in range(4):
        world.nodes[f"n{n}"] = {
            "metadata": {"name": f"n{n}", "labels": {"pool": "ml"}},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {}},
        }
    world.run(4)
    assert world.job is not None
    assert world.job["metadata"]["finalizers"] == []
    assert not world.made_groups
    assert world.state() == "Running"
    pod = world.live_pods("trainer")[0]
    assert pod["spec"]["nodeSelector"] == {"pool": "ml"}


def test_fake_nodes_prove_nothing() -> None:
    world = World(gpu_spec())
    world.run(4)
    for node in world.nodes.values():
        node["metadata"]["labels"][names.LABEL_FAKE_NODE] = "true"
    world.run(4)
    assert world.job is not None
    assert world.state() == "Running"
    assert world.job["status"]["display"]["transport"] == "unverified"
    assert world.condition("TransportVerified")["status"] == "Unknown"


def test_cost_is_of_nodes_that_are_there() -> None:
    world = World(gpu_spec())
    world.run(2)
    assert world.job is not None
    assert "costPerHourUsd" not in world.job["status"]
    world.run(6)
    expected = 4 * (FACTS["p5en.48xlarge"].usd_per_hour or 0) + 2 * (FACTS["c7i.large"].usd_per_hour or 0)
    assert world.job["status"]["costPerHourUsd"] == f"{expected:.2f}"
    assert world.job["status"]["display"]["costPerHour"] == f"{expected:.0f}"


def test_orphaned_launch_templates_go() -> None:
    world = World()
    world.run(4)
    world.templates.add("moerl-0f1e2d3c-spot-7")
    assert w.DeleteLaunchTemplate("moerl-0f1e2d3c-spot-7") in world.reconcile().actions
