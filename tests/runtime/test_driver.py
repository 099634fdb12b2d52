"""The driver against a real buffer, a real environment service and a toy engine that speaks the real protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web as aiohttp_web

from moerl_runtime import web
from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.records import SampleGroup
from moerl_runtime.rollout.driver_engine import EngineRefused
from moerl_runtime.rollout.protocol import ErrorCode
from moerl_runtime.scoring import service
from moerl_runtime.tasks.task import load
from moerl_runtime.weights.publish import Publisher
from support.rollout_world import BATCH, GROUP, STALENESS, until, world


async def test_groups_arrive_scored_with_versions(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        w.engine.good_from = 2
        await w.start()
        await asyncio.sleep(0.2)
        assert w.engine.requests == 0, "nothing is generated before a policy is published"
        assert (await buffer.ledger()).issued == 0
        await w.begin()
        version = await w.publish()
        batches = []
        for step in range(1, 6):
            batches.append(await w.take(step, version=version))
            version = await w.publish(step=step)
        for groups in batches:
            for group in groups:
                assert len(group.samples) == GROUP
                for sample in group.samples:
                    answer = list(group.prompt_ids[-2:0:-1])
                    right = sum(a == b for a, b in zip(answer, sample.output_ids, strict=True)) / 4
                    assert sample.reward == right
                    assert sample.scores == {"environment": right, "exact": float(right == 1.0)}
                    assert sample.logprobs[0] == -0.5
        assert {g.oldest_version for g in batches[0]} == {1}
        assert all(step - g.oldest_version <= STALENESS for step, b in enumerate(batches, 1) for g in b)
        indices = [g.prompt_index for b in batches for g in b]
        assert len(set(indices)) == 5 * BATCH, "nothing is trained on twice"
        assert max(indices) < (5 + STALENESS) * BATCH, "the dataset is drawn in order"
        assert all(s.reward == 1.0 for g in batches[4] for s in g.samples)
        assert (await buffer.audit()).problems == ()
        assert w.value("moerl_policy_version") == w.engine.version


async def test_interruption_gives_leases_back_at_once(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        await w.publish()
        w.engine.delay = 30.0
        await w.start()
        await until(lambda: w.engine.requests == 1)
        assert (await buffer.ledger()).leased == BATCH
        start = asyncio.get_running_loop().time()
        assert await w.stop() == BATCH
        assert asyncio.get_running_loop().time() - start < 10.0, "not the 30 s of a lease"
        assert (await buffer.ledger()).leased == 0
        assert (await buffer.stats()).leases["released"] == BATCH
        assert (await buffer.audit()).problems == ()


async def test_a_killed_driver_s_groups_are_made_by_another_and_its_commits_are_fenced(
    buffer: Buffer, tmp_path: Path
) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        version = await w.publish()
        w.engine.delay = 30.0
        await w.start("zombie", lease_seconds=0.3)
        await until(lambda: w.engine.requests == 1)
        zombie = w.running["zombie"][0]
        held = list(zombie._held._held.values())
        w.kill("zombie")
        w.engine.delay = 0.0
        await w.start("heir")
        await until(_admits(buffer, 2 * BATCH))
        groups = [*await w.take(1, version=version), *await w.take(2, version=version)]
        assert {g.worker for g in groups} == {"heir"}
        assert {g.uid for g in groups} >= {lease.uid for lease in held}
        for lease, group in zip(held, sorted(groups, key=lambda one: one.uid)[:BATCH], strict=True):
            late = SampleGroup(
                uid=lease.uid,
                epoch=lease.epoch,
                incarnation=lease.incarnation,
                worker="zombie",
                prompt_index=lease.prompt_index,
                prompt_ids=group.prompt_ids,
                samples=group.samples,
            )
            assert await buffer.commit(lease, late) == "fenced"
        assert (await buffer.stats()).leases["expired"] == BATCH
        await w.stop("heir")
        assert (await buffer.audit()).problems == ()


async def test_long_generation_keeps_its_lease(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        await w.publish()
        w.engine.delay = 5.0
        await w.start(lease_seconds=2.0)
        await until(lambda: w.engine.requests == 1)
        await until(_admits(buffer, BATCH))
        stats = await buffer.stats()
        assert stats.leases.get("expired", 0) == 0


def _admits(buffer: Buffer, count: int) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return (await buffer.ledger()).ready >= count

    return condition


async def test_tokens_survive_a_dead_scorer(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        live = w.environment_url
        async with web.serving(aiohttp_web.Application(), host="127.0.0.1", port=0) as port:
            dead = f"http://127.0.0.1:{port}"
        w.environment_url = dead
        await w.begin()
        version = await w.publish()
        await w.start()
        await until(lambda: w.value("moerl_scoring_retries_total") >= 3)
        assert w.engine.requests >= 1
        made = w.engine.requests
        await w.serve(service.app(load("builtin://reverse-4", seed=0), environment=True, reward=False), port=port)
        groups = await w.take(1, version=version)
        assert all(sample.reward == 1.0 for group in groups for sample in group.samples), "an outage is no reward 0"
        assert made <= 3, "generation waits for the scorer instead of piling up"
        assert live != dead


async def test_an_unscorable_group_is_failed_not_rewarded(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:

        async def refuse(_: aiohttp_web.Request) -> aiohttp_web.Response:
            return aiohttp_web.Response(status=400, text="no such prompt")

        app = aiohttp_web.Application()
        app.router.add_post("/v1/sessions/{s}/turns/{t}", refuse)
        w.environment_url = f"http://127.0.0.1:{await w.serve(app)}"
        await w.begin()
        await w.publish()
        await w.start()

        async def failed() -> bool:
            return (await buffer.ledger()).failed >= BATCH

        await until(failed)
        assert (await buffer.ledger()).ready == 0
        assert "no such prompt" in (await buffer.stats()).last_failure


async def test_reward_comes_from_the_reward_service_when_there_is_one(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:

        async def half(request: aiohttp_web.Request) -> aiohttp_web.Response:
            items = (await request.json())["items"]
            return aiohttp_web.json_response({"results": [{"reward": 0.5, "exact": False}] * len(items)})

        app = aiohttp_web.Application()
        app.router.add_post("/v1/score", half)
        w.reward_url = f"http://127.0.0.1:{await w.serve(app)}"
        await w.begin()
        version = await w.publish()
        await w.start()
        sample = (await w.take(1, version=version))[0].samples[0]
        assert sample.reward == 0.5
        assert sample.scores == {"environment": 1.0, "reward": 0.5, "exact": 0.0}


async def test_a_failed_load_leaves_the_replica_unadmitted_until_it_works(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        w.engine.fail_loads = 2
        await w.begin()
        version = await w.publish()
        driver = await w.start()
        await until(lambda: w.engine.fail_loads == 1)
        assert "did not load" in driver.not_ready()
        assert (await buffer.ledger()).issued == 0
        await w.take(1, version=version)
        assert driver.not_ready() == ""
        assert w.value("moerl_weight_loads_total", result="failed") == 2


async def test_a_restarted_engine_gets_its_weights_again(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        version = await w.publish()
        await w.start()
        await w.take(1, version=version)
        w.engine.version = None  # as after a restart: healthy, without weights
        version = await w.publish(step=1)
        await w.take(2, version=version)
        w.engine.version = None
        version = await w.publish(step=2)
        await w.take(3, version=version)
        await until(lambda: w.engine.version == version)
        assert (await buffer.audit()).problems == ()


async def test_an_engine_that_refuses_everything_ends_the_driver(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        w.engine.refuse = ErrorCode.INVALID
        await w.begin()
        await w.publish()
        await w.start()
        driver, task = w.running.pop("w")
        with pytest.raises(EngineRefused, match="as the test asked"):
            await asyncio.wait_for(task, 60)
        await driver.give_back()
        assert (await buffer.ledger()).leased == 0


async def test_a_restarted_trainer_is_followed(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        version = await w.publish()
        await w.start()
        first = await w.take(1, version=version)
        version = await w.publish(step=1)
        second = await w.take(2, version=version)
        await buffer.settle(1, 1)
        await w.begin(attempt=2, step=1)
        version = await w.publish(step=1)
        again = await w.take(2, version=version, attempt=2)
        assert version == 3
        # Step 2's groups went back to ready, but version 3 may not train on version 1: they are counted, not lost.
        assert {g.oldest_version for g in second} == {1}
        assert (await buffer.ledger()).stale == BATCH
        assert {g.oldest_version for g in again} <= {2, 3}
        assert not {g.uid for g in again} & {g.uid for g in (*first, *second)}
        await until(lambda: w.engine.version == version)
        assert (await buffer.audit()).problems == ()


async def test_a_lost_buffer_is_refilled_by_the_next_attempt(buffer: Buffer, tmp_path: Path) -> None:
    async with world(buffer, tmp_path) as w:
        await w.begin()
        await w.publish()
        version = await w.publish()
        await w.start()
        await w.take(1, version=version)
        await buffer.redis.flushall()
        await buffer.redis.hset("moerl:meta", "incarnation", 2)
        await w.begin(attempt=2)
        version = await w.publish()
        assert version == 1, "the highest version was lost with the buffer"
        groups = await w.take(1, version=version, attempt=2)
        assert {g.oldest_version for g in groups} == {1}, "the driver did not stay on version 2 of the old attempt"
        assert (await buffer.audit()).problems == ()


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"versions": [0] * 4}, "version 0 where"), ({"logprobs": [-1.0] * 3}, "differ in length")],
)
async def test_an_answer_that_must_not_be_trained_on_is_refused(
    buffer: Buffer, tmp_path: Path, bad: dict[str, list[float]], message: str
) -> None:
    async with world(buffer, tmp_path) as w:
        w.engine.bend = bad
        await w.begin()
        w.publisher = Publisher(buffer, attempt=1, keep=2, highest_seen=4)
        await w.publish()
        await w.start()
        _, task = w.running.pop("w")
        with pytest.raises(EngineRefused, match=message):
            await asyncio.wait_for(task, 60)
        assert (await buffer.ledger()).ready == 0
