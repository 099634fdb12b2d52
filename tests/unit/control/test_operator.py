"""The process: nothing is done before the cache is full and the lease is held; an end in good order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from moerl_operator.control import operator as module
from moerl_operator.control.leader import LeadershipLost
from moerl_operator.control.operator import Operator
from moerl_operator.core.world import AwsObservation, Plan, Snapshot
from moerl_operator.kube.api import Kinds, KubeError
from moerl_operator.observe.metrics import Metrics
from moerl_operator.settings import Settings
from support.memory_kube import MemoryKube

DOWN = KubeError(503, "Unavailable", "etcd is away")


class Aws:
    cluster_arn = "arn"

    async def observe(self, uid: str) -> AwsObservation:
        return AwsObservation()

    async def facts(self, types: Any) -> dict[str, Any]:
        return {}

    async def apply(self, uid: str, action: Any) -> None: ...

    def forget(self, uid: str) -> None: ...


class Process:
    """An operator with a scripted policy and no watches."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.kube.put(Kinds.MOERL_JOB, {"metadata": {"name": "j", "namespace": "ns"}, "spec": {}})
        self.kube.calls.clear()
        self.planned: list[datetime] = []
        self.stop = asyncio.Event()
        self.plan_error: Exception | None = None
        settings = Settings(cluster_name="c", identity="me", http_host="127.0.0.1", http_port=0, workers=2)
        self.operator = Operator(settings, kube=self.kube, aws=Aws(), plan=self._plan, metrics=Metrics(), rng=Random(0))

    def _plan(self, snapshot: Snapshot) -> Plan:
        self.planned.append(datetime.now(UTC))
        if self.plan_error:
            raise self.plan_error
        return Plan(status={"display": {"state": "Seen"}})

    def watch(self, stop: asyncio.Event) -> asyncio.Task[None]:
        async def until_stopped() -> None:
            await stop.wait()

        return asyncio.create_task(until_stopped())

    async def run_for(self, seconds: float) -> None:
        task = asyncio.create_task(self.operator.run(self.watch, self.stop))
        await asyncio.sleep(seconds)
        self.stop.set()
        await asyncio.wait_for(task, 10)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_RETRY_SECONDS", 0.05)


async def test_every_job_is_looked_at_after_the_start_and_the_lease_is_given_back() -> None:
    process = Process()
    await process.run_for(0.5)
    assert len(process.planned) == 1
    assert process.kube.objects["leases", "moerl-system", "moerl-operator"]["spec"]["holderIdentity"] == ""
    assert process.kube.objects["moerljobs", "ns", "j"]["status"] == {"display": {"state": "Seen"}}


async def test_while_the_cluster_cannot_be_listed_nothing_is_planned_and_the_probe_says_why() -> None:
    process = Process()
    process.kube.failures = [DOWN] * 1000
    await process.run_for(0.3)
    assert process.planned == []
    assert "etcd is away" in process.operator.health.ready_problems()[0]
    assert process.operator.health.live_problems() == []


async def test_nothing_is_planned_while_another_leads() -> None:
    process = Process()
    held = {"holderIdentity": "other", "leaseDurationSeconds": 15}
    process.kube.put(Kinds.LEASE, {"metadata": {"name": "moerl-operator", "namespace": "moerl-system"}, "spec": held})
    await process.run_for(0.5)
    assert process.planned == []
    assert process.kube.objects["leases", "moerl-system", "moerl-operator"]["spec"] == held


async def test_a_bug_in_the_policy_is_one_traceback_and_a_backoff(caplog: pytest.LogCaptureFixture) -> None:
    process = Process()
    process.plan_error = ZeroDivisionError("oops")
    await process.run_for(0.5)
    assert len(process.planned) == 1
    assert "this is a bug of the operator" in caplog.text


async def test_a_lost_lease_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()

    async def lost(self: object) -> None:
        await asyncio.sleep(0.1)
        raise LeadershipLost("gone")

    monkeypatch.setattr("moerl_operator.control.leader.Leader.hold", lost)
    with pytest.raises(LeadershipLost):
        await process.operator.run(process.watch, process.stop)
    lease = process.kube.objects["leases", "moerl-system", "moerl-operator"]
    assert lease["spec"]["holderIdentity"] == "me"  # whoever has taken it now: it is not ours to write


async def test_watches_that_break_end_the_process() -> None:
    process = Process()

    def broken(stop: asyncio.Event) -> asyncio.Task[None]:
        async def fail() -> None:
            raise RuntimeError("no more watches")

        return asyncio.create_task(fail())

    with pytest.raises(RuntimeError, match="no more watches"):
        await process.operator.run(broken, process.stop)
