"""A driver's world for tests: real buffer, weight path and environment service, a toy engine, the trainer's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web as aiohttp_web

from moerl_runtime import web
from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.records import SampleGroup
from moerl_runtime.config import parse_job
from moerl_runtime.rollout.driver import Driver
from moerl_runtime.rollout.driver_engine import EngineClient
from moerl_runtime.rollout.driver_metrics import DriverMetrics
from moerl_runtime.rollout.driver_scorer import Scorer
from moerl_runtime.scoring import service
from moerl_runtime.tasks.task import load
from moerl_runtime.weights.publish import Publisher, TensorBytes
from support.toy_engine import ToyEngine

BATCH, GROUP, STALENESS = 4, 4, 1


JOB: dict[str, Any] = {
    "metadata": {"name": "j", "namespace": "n", "uid": "u"},
    "spec": {
        "algorithm": {
            "groupSize": GROUP,
            "promptsPerIteration": BATCH,
            "iterations": 10,
            "maxNewTokens": 4,
            "maxStalenessVersions": STALENESS,
        },
        "model": {"preset": "TinyQwen3MoE"},
        "storage": {"dataset": "builtin://reverse-4"},
        "rollout": {"pools": [{"name": "main", "replicas": 1}]},
    },
}


@dataclass
class World:
    """Everything around a driver, and the trainer's side of the buffer."""

    buffer: Buffer
    engine: ToyEngine
    stack: AsyncExitStack
    tmp: Path
    environment_url: str = ""
    reward_url: str = ""
    engine_url: str = ""
    publisher: Publisher | None = None
    running: dict[str, tuple[Driver, asyncio.Task[None]]] = field(default_factory=dict)
    metrics: dict[str, DriverMetrics] = field(default_factory=dict)

    async def serve(self, app: aiohttp_web.Application, *, port: int = 0) -> int:
        """Serve an application on a free port of this machine."""
        return await self.stack.enter_async_context(web.serving(app, host="127.0.0.1", port=port))

    async def begin(self, attempt: int = 1, step: int = 0) -> None:
        """What a trainer does first."""
        begun = await self.buffer.begin(attempt, step)
        seen = begun.head.version if begun.head else 0
        self.publisher = Publisher(self.buffer, attempt=attempt, keep=2, highest_seen=seen)

    async def publish(self, *, step: int = 0) -> int:
        """Publish toy weights through the real weight path."""
        assert self.publisher is not None
        version = self.publisher.version + 1
        tensor = TensorBytes(dtype="U8", shape=(4,), data=memoryview(b"toy!"))
        await self.publisher.publish({"t": tensor}, {"config.json": f'{{"version": {version}}}'}, step=step)
        return version

    async def start(self, name: str = "w", *, lease_seconds: float = 30.0) -> Driver:
        """Start a driver."""
        session = await self.stack.enter_async_context(aiohttp.ClientSession())
        metrics = self.metrics[name] = DriverMetrics()
        driver = Driver(
            job=parse_job(JOB),
            task=load("builtin://reverse-4", seed=0),
            worker=name,
            buffer=self.buffer,
            engine=EngineClient(session, self.engine_url),
            scorer=Scorer(
                session,
                environment_url=self.environment_url,
                reward_url=self.reward_url,
                on_retry=lambda _: metrics.retries.inc(),
            ),
            metrics=metrics,
            weights_dir=self.tmp / name,
            lease_seconds=lease_seconds,
        )
        self.running[name] = (driver, asyncio.create_task(driver.run()))
        return driver

    async def stop(self, name: str = "w") -> int:
        """What SIGTERM does."""
        driver, task = self.running.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await driver.give_back()

    def kill(self, name: str = "w") -> None:
        """What kill -9 does: nothing is given back."""
        driver, task = self.running.pop(name)
        task.cancel()
        for one in driver._scoring:
            one.cancel()

    async def take(self, step: int, *, version: int, attempt: int = 1) -> list[SampleGroup]:
        """Wait for a step's batch."""
        async with asyncio.timeout(60):
            while True:
                groups = await self.buffer.take(step, attempt, batch=BATCH, version=version, max_staleness=STALENESS)
                if groups is not None:
                    return groups
                await asyncio.sleep(0.02)

    def value(self, metric: str, name: str = "w", **labels: str) -> float:
        """A metric of a driver."""
        return self.metrics[name].registry.get_sample_value(metric, labels) or 0.0


async def until(condition: Callable[[], Awaitable[bool] | bool], *, seconds: float = 60.0) -> None:
    """Poll until true."""
    async with asyncio.timeout(seconds):
        while True:
            answer = condition()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def world(buffer: Buffer, tmp_path: Path) -> AsyncIterator[World]:
    """An engine and an environment, running; drivers are ended at the end."""
    async with AsyncExitStack() as stack:
        one = World(buffer=buffer, engine=ToyEngine(), stack=stack, tmp=tmp_path)
        one.engine_url = f"http://127.0.0.1:{await one.serve(one.engine.app())}"
        task = load("builtin://reverse-4", seed=0)
        one.environment_url = f"http://127.0.0.1:{await one.serve(service.app(task, environment=True, reward=False))}"
        try:
            yield one
        finally:
            for name in list(one.running):
                await one.stop(name)
