"""What goes into a snapshot, and when AWS is asked at all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.control.cache import Cache
from moerl_operator.control.observer import LOOKUP_SECONDS, Observer, needs_aws
from moerl_operator.control.ports import AwsFailure
from moerl_operator.core.world import AwsError, AwsObservation, Installation
from moerl_operator.kube.api import Kinds, KubeError
from support.memory_kube import MemoryKube

UID = "0a1b2c3d-0000"
ERROR = AwsError("ec2:DescribeInstanceTypes", "Throttling", "slow", "Retry")


def job(**nodes: Any) -> dict[str, Any]:
    trainer = {"nodes": {"provisioner": "ManagedNodeGroup", "instanceTypes": ["p5en.48xlarge"], **nodes}}
    return {
        "metadata": {"name": "j", "namespace": "ns", "uid": UID, "resourceVersion": "1"},
        "spec": {"trainer": trainer, "rollout": {"pools": [{"nodes": {"instanceTypes": ["g6e.48xlarge"]}}]}},
    }


class Aws:
    cluster_arn = "arn:cluster"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.types: set[str] = set()
        self.failure: AwsFailure | None = None

    async def observe(self, uid: str) -> AwsObservation:
        self.asked.append(uid)
        return AwsObservation()

    async def facts(self, types: Any) -> dict[str, Any]:
        self.types = set(types)
        if self.failure:
            raise self.failure
        return {}

    async def apply(self, uid: str, action: Any) -> None: ...

    def forget(self, uid: str) -> None: ...


class World:
    def __init__(self) -> None:
        self.kube, self.cache, self.aws = MemoryKube(), Cache(), Aws()
        self.observer = Observer(
            kube=self.kube,
            cache=self.cache,
            aws=self.aws,
            installation=Installation(id="i", cluster_name="c", cluster_arn=""),
            clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    async def look(self, seen: dict[str, Any]) -> Any:
        return await self.observer.snapshot(seen, dry_run_done=False, dry_run_error=None)


@pytest.fixture
def world() -> World:
    return World()


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}}


async def test_nodes_of_the_jobs_groups_and_selectors_and_no_others(world: World) -> None:
    group = names.node_group(UID, "spot", 2)
    world.cache.put(Kinds.NODE, node("mine", **{names.NODE_POOL_PREFIX + "spot": group}))
    world.cache.put(Kinds.NODE, node("other", **{names.NODE_POOL_PREFIX + "spot": "moerl-ffffffff-spot-1"}))
    world.cache.put(Kinds.NODE, node("existing", kind="gpu", more="x"))
    world.cache.put(Kinds.NODE, node("plain"))

    snapshot = await world.look(job(nodeSelector={"kind": "gpu"}))

    assert [each["metadata"]["name"] for each in snapshot.nodes] == ["existing", "mine"]


async def test_the_clusters_arn_is_what_aws_says_unless_it_is_set(world: World) -> None:
    assert (await world.look(job())).installation.cluster_arn == "arn:cluster"


async def test_types_of_all_roles_and_pools_are_asked_for(world: World) -> None:
    await world.look(job())
    assert world.aws.types == {"p5en.48xlarge", "g6e.48xlarge"}


async def test_facts_that_did_not_come_are_an_error_of_the_observation_not_an_absence(world: World) -> None:
    world.aws.failure = AwsFailure(ERROR)
    snapshot = await world.look(job())
    assert snapshot.aws.error == ERROR
    assert snapshot.instance_facts == {}


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({}, True),
        ({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, False),
        ({"status": {"conditions": [{"type": "Complete", "status": "False"}]}}, True),
        ({"finalizers": [names.FINALIZER], "status": {"conditions": [{"type": "Failed", "status": "True"}]}}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [names.FINALIZER]}, True),
    ],
)
def test_aws_is_asked_when_it_may_hold_something_or_shall(change: dict[str, Any], asked: bool) -> None:
    seen = job()
    seen["status"] = change.pop("status", {})
    seen["metadata"] |= change
    assert needs_aws(seen) is asked


def test_a_job_on_existing_nodes_needs_no_aws() -> None:
    existing = {"nodes": {"provisioner": "Existing"}}
    seen = job() | {"spec": {role: existing for role in names.ROLES if role != names.ROLLOUT}}
    assert not needs_aws(seen)


async def test_accounts_that_others_made_and_the_secret_are_looked_up_now_and_then(world: World) -> None:
    world.kube.put(Kinds.SERVICE_ACCOUNT, {"metadata": {"name": "theirs", "namespace": "ns"}})
    world.kube.put(Kinds.SECRET, {"metadata": {"name": "j-buffer", "namespace": "ns", "labels": {
        names.LABEL_JOB_UID: UID}}, "data": {"password": "eA=="}})  # fmt: skip
    seen = job()
    seen["spec"]["serviceAccountName"] = "theirs"

    first = await world.look(seen)
    await world.look(seen)

    assert [each["metadata"]["name"] for each in first.service_accounts] == ["theirs"]
    assert ["data" in each for each in first.secrets] == [False]
    assert len([call for call in world.kube.calls if call.startswith("get secrets")]) == 1
    assert LOOKUP_SECONDS >= 60


async def test_a_question_that_was_not_answered_makes_no_snapshot(world: World) -> None:
    world.kube.failures = [KubeError(503, "Unavailable", "down")]
    with pytest.raises(KubeError):
        await world.look(job())
