"""The queue on virtual time (looptime): minutes of backoff pass in milliseconds."""

from __future__ import annotations

import asyncio
from random import Random

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_operator.control.queue import LIVE_IN_A_ROW, QueueClosed, WorkQueue

pytestmark = pytest.mark.looptime


@pytest.fixture
async def queue() -> WorkQueue[str]:
    return WorkQueue(rng=Random(1))


async def test_a_key_waits_once_however_often_it_is_added(queue: WorkQueue[str]) -> None:
    for _ in range(3):
        queue.add("a")
    queue.add("b")

    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert queue.depth == 0


async def test_a_key_added_while_worked_on_comes_back_once_after_it_is_done(queue: WorkQueue[str]) -> None:
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert queue.depth == 0  # never two workers on one key

    queue.done(key)

    assert await queue.get() == "a"
    queue.done("a")
    assert queue.depth == 0


async def test_live_keys_come_before_background_ones(queue: WorkQueue[str]) -> None:
    for key in ("r1", "r2", "r3"):
        queue.add(key, background=True)
    queue.add("live")
    queue.add("r3")

    order = [await queue.get() for _ in range(4)]

    assert set(order[:2]) == {"live", "r3"}
    assert order[2:] == ["r1", "r2"]


async def test_a_storm_of_live_keys_does_not_starve_the_background(queue: WorkQueue[str]) -> None:
    queue.add("resync", background=True)
    for number in range(LIVE_IN_A_ROW * 3):
        queue.add(f"live-{number}")

    order = [await queue.get() for _ in range(LIVE_IN_A_ROW + 1)]

    assert order[-1] == "resync"


async def test_backoff_doubles_with_jitter_up_to_the_ceiling_and_is_forgotten(queue: WorkQueue[str]) -> None:
    delays = [queue.add_failed("a") for _ in range(12)]
    for number, delay in enumerate(delays):
        full = min(2.0**number, 300.0)
        assert 0.75 * full <= delay <= full

    queue.forget("a")
    assert queue.add_failed("a") <= 1.0


async def test_a_failed_key_comes_back_when_its_time_has_come(queue: WorkQueue[str]) -> None:
    queue.add("a")
    queue.done(await queue.get())
    delay = queue.add_failed("a")

    assert await queue.get() == "a"
    assert asyncio.get_running_loop().time() == pytest.approx(delay, abs=0.01)


async def test_of_several_timers_the_earliest_counts_and_fires_once(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 30)
    queue.add_after("a", 5)
    queue.add_after("a", 20)

    queue.done(await queue.get())
    assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await queue.get()


async def test_a_waiting_worker_is_woken_by_an_earlier_timer(queue: WorkQueue[str]) -> None:
    queue.add_after("late", 60)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add_after("early", 1)

    assert await worker == "early"
    assert asyncio.get_running_loop().time() == pytest.approx(2, abs=0.01)


async def test_age_is_that_of_the_oldest_waiting_key(queue: WorkQueue[str]) -> None:
    queue.add("old", background=True)
    await asyncio.sleep(3)
    queue.add("new")

    assert queue.oldest_age == pytest.approx(3, abs=0.01)


async def test_closing_ends_every_waiting_worker(queue: WorkQueue[str]) -> None:
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()

    results = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(result, QueueClosed) for result in results)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 2)), max_size=40), st.integers(1, 3))
def test_no_change_is_lost_and_no_key_is_worked_on_twice_at_a_time(
    adds: list[tuple[str, bool, float]], workers: int
) -> None:
    """Whatever the interleaving: after the last add of a key there is a reconcile that starts later."""
    added: dict[str, float] = {}
    started: dict[str, float] = {}
    busy: set[str] = set()

    async def work(queue: WorkQueue[str]) -> None:
        while True:
            try:
                key = await queue.get()
            except QueueClosed:
                return
            assert key not in busy
            busy.add(key)
            started[key] = asyncio.get_running_loop().time()
            await asyncio.sleep(0.7)
            busy.discard(key)
            queue.done(key)

    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue(rng=Random(0))
        tasks = [asyncio.create_task(work(queue)) for _ in range(workers)]
        for key, background, pause in adds:
            queue.add(key, background=background)
            added[key] = asyncio.get_running_loop().time()
            await asyncio.sleep(pause)
        await asyncio.sleep(200)
        queue.close()
        await asyncio.gather(*tasks)

    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    assert started.keys() == added.keys()
    assert all(started[key] >= added[key] for key in added)
