"""Each way to die while the process lives turns the probes red."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from moerl_operator.observe import health as health_module
from moerl_operator.observe.health import Health
from moerl_operator.observe.metrics import Metrics
from moerl_operator.observe.server import serving


class World:
    """What the probes look at."""

    def __init__(self) -> None:
        self.ages = {"pods": 5.0, "jobs": 30.0}
        self.oldest = 0.0
        self.longest = 0.0
        self.health = Health(
            stream_ages=lambda: self.ages,
            queue_oldest=lambda: self.oldest,
            longest_work=lambda: self.longest,
            expected_streams=frozenset(("pods", "jobs")),
        )
        self.health.synced = True


@pytest.fixture
def world() -> World:
    return World()


def test_a_well_operator_has_no_problems(world: World) -> None:
    assert world.health.ready_problems() == world.health.live_problems() == []


def test_before_the_cache_is_filled_it_is_alive_but_not_ready(world: World) -> None:
    world.health.synced = False
    world.ages = {}
    assert world.health.live_problems() == []
    assert world.health.ready_problems() == ["the cache is not filled yet"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda world: world.ages.update(pods=200.0), "watch of pods has been silent for 200 s"),
        (lambda world: world.ages.pop("jobs"), "there is no watch of jobs"),
        (lambda world: setattr(world, "oldest", 130.0), "waited in the queue for 130 s"),
        (lambda world: setattr(world, "longest", 400.0), "reconcile has been running for 400 s"),
        (lambda world: world.health._lags.append(9.0), "lags by 9.0 s"),
    ],
)
def test_what_is_stuck_is_named(world: World, change: object, words: str) -> None:
    change(world)  # type: ignore[operator]
    (problem,) = world.health.live_problems()
    assert words in problem
    assert world.health.ready_problems() == [problem]


async def test_a_blocked_event_loop_is_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "LAG_PROBE_SECONDS", 0.01)
    task = asyncio.create_task(world.health.beat())
    await asyncio.sleep(0.05)
    time.sleep(0.5)  # noqa: ASYNC251 - this is the fault
    await asyncio.sleep(0.05)
    assert world.health.lag >= 0.4
    task.cancel()


@pytest.fixture
async def port(world: World) -> AsyncIterator[int]:
    metrics = Metrics()
    async with serving(host="127.0.0.1", port=0, health=world.health, metrics=metrics) as port:
        yield port


async def fetch(port: int, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def test_the_probes_answer_with_the_reason(world: World, port: int) -> None:
    assert await fetch(port, "/healthz") == (200, "ok\n")
    assert await fetch(port, "/readyz") == (200, "ok\n")
    world.oldest = 500.0
    status, text = await fetch(port, "/healthz")
    assert status == 503
    assert "waited in the queue for 500 s" in text


async def test_metrics_are_served_in_prometheus_text(port: int) -> None:
    status, text = await fetch(port, "/metrics")
    assert status == 200
    assert "# TYPE moerl_reconcile_total counter" in text
