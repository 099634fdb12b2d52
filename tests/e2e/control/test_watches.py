"""kopf as the host of the watches, against a real API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from moerl_operator.control import handlers
from moerl_operator.control.kinds import WATCHED
from moerl_operator.kube.api import Kinds
from moerl_operator.kube.client import load_connection
from moerl_operator.observe.streams import StreamAges
from support.apiserver import ApiServer
from support.waiting import until

from .conftest import Loop, child, manifest

pytestmark = pytest.mark.e2e


class Watching:
    def __init__(self, loop: Loop, server: ApiServer, namespaces: tuple[str, ...] = ()) -> None:
        self.stop = asyncio.Event()
        self.ages = StreamAges()
        self.task = asyncio.create_task(
            handlers.watch(
                intake=loop.intake,
                login=lambda: load_connection(str(server.kubeconfig)),
                ages=self.ages,
                namespaces=namespaces,
                stop=self.stop,
            )
        )

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 10)


@pytest.fixture
async def watching(loop: Loop, bare_server: ApiServer) -> AsyncIterator[Watching]:
    started = Watching(loop, bare_server)

    async def all_open() -> bool:
        return started.ages.ages().keys() == {kind.plural for kind in WATCHED}

    await until("every stream is open", all_open, seconds=60)
    yield started
    await started.end()


async def next_key(loop: Loop) -> tuple[str, str]:
    async with asyncio.timeout(20):
        key = await loop.queue.get()
    loop.queue.done(key)
    return key


async def drained(loop: Loop) -> None:
    await asyncio.sleep(1)
    while loop.queue.depth:
        await next_key(loop)


async def test_changes_of_jobs_and_children_reach_cache_and_queue(loop: Loop, watching: Watching) -> None:
    await drained(loop)
    job = await loop.job()
    made = await loop.kube.create(Kinds.CONFIG_MAP, child(job))
    assert await next_key(loop) == (loop.namespace, "j")
    assert [obj["metadata"]["uid"] for obj in loop.cache.of_job(job["metadata"]["uid"], Kinds.CONFIG_MAP)] == [
        made["metadata"]["uid"]
    ]

    await loop.kube.delete(Kinds.CONFIG_MAP, loop.namespace, "j-config")
    assert await next_key(loop) == (loop.namespace, "j")
    assert loop.cache.of_job(job["metadata"]["uid"], Kinds.CONFIG_MAP) == ()

    await loop.kube.create(Kinds.MOERL_JOB, manifest(loop.namespace, "other"))
    assert await next_key(loop) == (loop.namespace, "other")


async def test_what_is_not_labelled_as_ours_is_not_even_sent(loop: Loop, watching: Watching) -> None:
    before = loop.cache.count(Kinds.CONFIG_MAP)
    plain = {"metadata": {"name": "plain", "namespace": loop.namespace}}
    await loop.kube.create(Kinds.CONFIG_MAP, plain)
    job = await loop.job()
    await loop.kube.create(Kinds.CONFIG_MAP, child(job))

    async def ours_is_there() -> bool:
        return loop.cache.count(Kinds.CONFIG_MAP) > before

    await until("the labelled one is seen", ours_is_there)
    assert loop.cache.get(Kinds.CONFIG_MAP, loop.namespace, "plain") is None


async def test_watching_writes_nothing(loop: Loop, watching: Watching, bare_server: ApiServer) -> None:
    job = await loop.job()
    await loop.kube.patch(Kinds.MOERL_JOB, loop.namespace, "j", {"metadata": {"labels": {"touched": "yes"}}})
    await drained(loop)

    seen = await loop.job()
    assert seen["metadata"].get("finalizers") is None
    assert seen["metadata"].get("annotations") is None
    assert seen["spec"] == job["spec"]
    requests = [json.loads(line) for line in bare_server.audit_log.read_text().splitlines()]
    verbs = {(each["verb"], each["requestURI"]) for each in requests if each.get("userAgent") == "moerl-operator/watch"}
    assert verbs
    assert {verb for verb, _ in verbs} <= {"get", "list", "watch"}, verbs


async def test_it_ends_promptly_and_leaves_other_tasks_alone(loop: Loop, bare_server: ApiServer) -> None:
    started = Watching(loop, bare_server, namespaces=(loop.namespace,))

    async def open_streams() -> bool:
        return len(started.ages.ages()) == len(WATCHED)

    await until("every stream is open", open_streams, seconds=60)
    younger = asyncio.create_task(asyncio.sleep(60))
    start = time.monotonic()
    await started.end()

    assert time.monotonic() - start < 5
    await asyncio.sleep(0.2)
    assert not younger.done()
    younger.cancel()
