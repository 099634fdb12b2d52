"""Which jobs a change of the cluster wakes, and which changes wake none."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.control.cache import Cache
from moerl_operator.control.intake import Intake
from moerl_operator.control.queue import WorkQueue
from moerl_operator.kube.api import Kinds
from moerl_operator.observe.metrics import Metrics
from support.memory_kube import MemoryKube

pytestmark = pytest.mark.looptime
Key = tuple[str, str]


class Fixture:
    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue(rng=Random(0))
        self.intake = Intake(kube=self.kube, cache=self.cache, queue=self.queue, metrics=Metrics(), namespaces=())
        self._version = 0

    def take(self, kind: Any, event_type: str | None, obj: dict[str, Any]) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.intake.take(kind, event_type, obj)

    async def woken(self) -> list[Key]:
        keys = []
        while self.queue.depth:
            keys.append(await self.queue.get())
            self.queue.done(keys[-1])
        return sorted(keys)


@pytest.fixture
async def news() -> Fixture:
    found = Fixture()
    for name, provisioner in (("a", "ManagedNodeGroup"), ("b", "ManagedNodeGroup"), ("existing", "Existing")):
        found.take(Kinds.MOERL_JOB, None, job(name, provisioner))
    await found.woken()
    return found


def job(name: str, provisioner: str = "ManagedNodeGroup") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid(name)},
        "spec": {"trainer": {"nodes": {"provisioner": provisioner}}},
    }


def uid(name: str) -> str:
    return f"{name}{'0' * 8}"[:8] + "-0000"


def pod(owner: str, *, node: str = "") -> dict[str, Any]:
    labels = {names.LABEL_JOB: owner, names.LABEL_JOB_UID: uid(owner)}
    return {
        "metadata": {"name": f"{owner}-p", "namespace": "ns", "uid": f"pod-{owner}", "labels": labels},
        "spec": {"nodeName": node},
    }


def node(group: str = "", *, ready: str = "True", beat: str = "1") -> dict[str, Any]:
    labels = {names.NODE_ROLE_PREFIX + "trainer": group} if group else {}
    condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": beat}
    return {"metadata": {"name": "n", "uid": "n", "labels": labels}, "status": {"conditions": [condition]}}


async def test_a_job_wakes_itself_and_a_child_its_owner(news: Fixture) -> None:
    news.take(Kinds.MOERL_JOB, "MODIFIED", job("a"))
    assert await news.woken() == [("ns", "a")]
    news.take(Kinds.POD, "ADDED", pod("b"))
    assert await news.woken() == [("ns", "b")]
    news.take(Kinds.POD, "DELETED", pod("b"))
    assert await news.woken() == [("ns", "b")]


async def test_a_child_of_a_dead_job_wakes_the_name_so_that_a_namesake_can_go_on(news: Fixture) -> None:
    news.take(Kinds.POD, "ADDED", pod("ghost"))
    assert await news.woken() == [("ns", "ghost")]


async def test_a_class_wakes_every_job(news: Fixture) -> None:
    news.take(Kinds.MOERL_NODE_CLASS, "MODIFIED", {"metadata": {"name": "default", "uid": "c"}})
    assert await news.woken() == [("ns", "a"), ("ns", "b"), ("ns", "existing")]


async def test_a_node_wakes_the_job_of_its_group_and_those_that_use_existing_nodes(news: Fixture) -> None:
    news.take(Kinds.NODE, "ADDED", node(names.node_group(uid("a"), "trainer", 1)))
    assert await news.woken() == [("ns", "a"), ("ns", "existing")]


async def test_a_node_wakes_the_jobs_whose_pods_are_on_it(news: Fixture) -> None:
    news.take(Kinds.POD, "ADDED", pod("b", node="n"))
    await news.woken()
    news.take(Kinds.NODE, "ADDED", node())
    assert await news.woken() == [("ns", "b"), ("ns", "existing")]


async def test_a_heartbeat_wakes_nobody_but_a_lost_node_does(news: Fixture) -> None:
    group = names.node_group(uid("a"), "trainer", 1)
    news.take(Kinds.NODE, "ADDED", node(group))
    await news.woken()
    news.take(Kinds.NODE, "MODIFIED", node(group, beat="2"))
    assert await news.woken() == []
    news.take(Kinds.NODE, "MODIFIED", node(group, ready="Unknown", beat="3"))
    assert ("ns", "a") in await news.woken()


async def test_old_news_wake_nobody(news: Fixture) -> None:
    late = pod("a")
    news.take(Kinds.POD, "ADDED", pod("a"))
    await news.woken()
    late["metadata"]["resourceVersion"] = "1"
    news.intake.take(Kinds.POD, "MODIFIED", late)
    assert await news.woken() == []


async def test_a_full_list_finds_what_the_watch_has_missed(news: Fixture) -> None:
    news.kube.put(Kinds.MOERL_JOB, job("b"))
    news.kube.put(Kinds.POD, pod("b"))

    assert await news.intake.resync() >= 2

    assert ("ns", "b") in await news.woken()
    assert [each["metadata"]["name"] for each in news.cache.all(Kinds.MOERL_JOB)] == ["b"]  # the others are gone
    assert await news.intake.resync() == 0
