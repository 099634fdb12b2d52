"""The rollout driver: `python -m moerl_runtime driver`, beside an engine in every rollout pod.

    healthy engine -> HEAD -> pull -> load -> [issue, lease -> generate -> score -> commit] ... -> HEAD moved? load it

No torch: it starts in a second and its memory is small. It never leases before its engine serves a version that the
request admits; it renews what it works on; scoring runs beside the next generation. On SIGTERM it gives its leases
back, so that nothing waits for them to run out, and exits 143.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from .. import web
from ..buffer.client import Buffer
from ..buffer.model import BufferFault, CommitResult, Lease
from ..buffer.records import Sample, SampleGroup, token_ids
from ..config import ConfigError, JobConfig, Settings
from ..tasks.task import Task, TaskError, load
from ..weights.manifest import WeightsCorrupt, WeightsGone
from ..weights.store import pull
from . import protocol
from .driver_engine import EngineClient, EngineRefused, EngineUnavailable
from .driver_leases import HeldLeases
from .driver_metrics import DriverMetrics
from .driver_scorer import Scored, Scorer, Unscorable
from .protocol import GenerateRequest, Sampling

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
MAX_UNIT_GROUPS = 64
"""Groups of one generate request at most: the unit that a lost pod loses."""
MAX_SCORING = 2
"""Generated units that may wait for their scores before generation waits too."""
IDLE_SECONDS = 0.05
MAX_IDLE_SECONDS = 0.25
POLLS_PER_SECOND = 400
"""Polls of all idle drivers of a job together, at most about this many a second."""
MAX_REFUSALS = 10
"""Requests in a row that the engine refuses (not: cannot serve now) before the driver gives up loudly."""
GRACE_SECONDS = 2.0
"""After SIGTERM, how long groups that are generated already may still be scored and committed."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Responses that have no reward yet."""

    lease: Lease
    prompt_ids: list[int]
    sequences: Sequence[protocol.Sequence]

    @property
    def tokens(self) -> int:
        return sum(len(sequence.output_ids) for sequence in self.sequences)


class Driver:
    """One driver's loop. `run` never returns by itself; cancel it, then call `give_back`."""

    def __init__(
        self, *, job: JobConfig, task: Task, worker: str, buffer: Buffer, engine: EngineClient, scorer: Scorer,
        metrics: DriverMetrics, weights_dir: Path, lease_seconds: float = LEASE_SECONDS,
    ) -> None:  # fmt: skip
        self._algorithm = job.algorithm
        self._unit = min(MAX_UNIT_GROUPS, -(-job.algorithm.prompts_per_iteration // job.rollout_replicas))
        self._task, self._worker = task, worker
        self._buffer, self._engine, self._scorer = buffer, engine, scorer
        self._metrics = metrics
        self._weights_dir = weights_dir
        self._lease_seconds = lease_seconds
        self._loaded: tuple[int, int] | None = None  # (attempt, version)
        self._held = HeldLeases(buffer, ttl_seconds=lease_seconds)
        self._scoring: set[asyncio.Task[None]] = set()
        self._state = "the engine has not answered yet"
        self._max_idle = max(MAX_IDLE_SECONDS, job.rollout_replicas / POLLS_PER_SECOND)
        self._refusals = 0

    def not_ready(self) -> str:
        """Why this replica is not admitted; empty when it serves a version."""
        return self._state if self._loaded is None else ""

    async def run(self) -> None:
        """Work until cancelled. EngineRefused if the engine refuses everything that it is asked for."""
        await self._engine.wait_healthy()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._held.renew_forever())
                group.create_task(self._work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def give_back(self) -> int:
        """After `run` was cancelled: finish what only lacks a commit, release the rest; the number released."""
        with contextlib.suppress(EngineUnavailable, EngineRefused):
            await self._engine.abort()
        if self._scoring:
            await asyncio.wait(self._scoring, timeout=GRACE_SECONDS)
        for one in self._scoring:
            one.cancel()
        await asyncio.gather(*self._scoring, return_exceptions=True)
        released = await self._held.release_all()
        self._metrics.released.inc(released)
        return released

    async def _work(self) -> None:
        idle = IDLE_SECONDS
        while True:
            if await self._turn():
                idle = IDLE_SECONDS
            else:
                await asyncio.sleep(idle)
                idle = min(idle * 1.5, self._max_idle)

    async def _turn(self) -> bool:
        """One unit of work; False when there was none to do now."""
        try:
            if not await self._on_head():
                return False
            leases = await self._lease()
            if not leases:
                return False
            await self._unit_of_work(leases)
        except EngineUnavailable as error:
            log.warning("%s", error)
            self._unload(str(error))
            await self._engine.wait_healthy()
            return False
        except EngineRefused as error:
            log.warning("%s", error)
            self._refusals += 1
            if self._refusals >= MAX_REFUSALS:
                raise
            return False
        except (BufferFault, WeightsGone, WeightsCorrupt, OSError) as error:
            log.warning("%s", error)
            return False
        self._refusals = 0
        return True

    # ---- policy versions

    async def _on_head(self) -> bool:
        """Bring the engine to HEAD; False while nothing is published.

        A newer attempt's HEAD is newer whatever its number: a buffer that was lost may have lost the highest version.
        """
        head = await self._buffer.head()
        if head is None:
            self._state = "no policy version is published yet"
            return False
        if self._loaded is not None and self._loaded >= (head.attempt, head.version):
            return True
        self._state = f"loading version {head.version}"
        start = time.monotonic()
        folder = await pull(self._buffer, head, self._weights_dir)
        pulled = time.monotonic()
        self._metrics.pull_seconds.observe(pulled - start)
        try:
            await self._engine.load(folder, head.version)
        except (EngineUnavailable, EngineRefused) as error:
            self._metrics.loads.labels("failed").inc()
            self._unload(f"version {head.version} did not load: {error}")
            raise
        self._metrics.load_seconds.observe(time.monotonic() - pulled)
        self._metrics.loads.labels("loaded").inc()
        if self._loaded is None:
            log.info("serving from version %d of attempt %d on", head.version, head.attempt)
        self._loaded = head.attempt, head.version
        self._metrics.version.set(head.version)
        return True

    def _unload(self, why: str) -> None:
        """The engine serves nothing that we know of: HEAD must be loaded before the next lease."""
        self._loaded, self._state = None, why
        self._metrics.version.set(-1)
        self._metrics.refused.inc()

    # ---- units

    async def _lease(self) -> list[Lease]:
        assert self._loaded is not None
        batch, staleness = self._algorithm.prompts_per_iteration, self._algorithm.max_staleness_versions
        await self._buffer.issue(self._unit, batch=batch, max_staleness=staleness)
        answer = await self._buffer.lease(
            self._worker,
            self._unit,
            ttl_seconds=self._lease_seconds,
            version=self._loaded[1],
            batch=batch,
            max_staleness=staleness,
        )
        self._held.add(answer.leases)
        self._metrics.leases.set(len(self._held))
        return list(answer.leases)

    async def _unit_of_work(self, leases: list[Lease]) -> None:
        """Generate for `leases`, then leave scoring and commit to the background."""
        try:
            generated = await self._generate(leases)
        except (EngineUnavailable, EngineRefused):
            await self._held.release(leases)
            self._metrics.released.inc(len(leases))
            raise
        while len(self._scoring) >= MAX_SCORING:
            await asyncio.wait(self._scoring, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._finish(generated))
        self._scoring.add(task)
        task.add_done_callback(self._scoring.discard)

    async def _generate(self, leases: list[Lease]) -> list[Generated]:
        algorithm = self._algorithm
        prompts = [self._task.prompt(lease.prompt_index) for lease in leases]
        request = GenerateRequest(
            input_ids=prompts,
            n=algorithm.group_size,
            sampling=Sampling(temperature=float(algorithm.temperature), max_new_tokens=algorithm.max_new_tokens),
            min_version=max(lease.min_version for lease in leases),
        )
        with self._metrics.generate_seconds.time():
            response = await self._engine.generate(request)
        n = algorithm.group_size
        generated = [
            Generated(lease=lease, prompt_ids=prompt, sequences=response.sequences[i * n : (i + 1) * n])
            for i, (lease, prompt) in enumerate(zip(leases, prompts, strict=True))
        ]
        self._metrics.tokens.inc(sum(one.tokens for one in generated))
        return generated

    async def _finish(self, unit: list[Generated]) -> None:
        """Score and commit each group; a fault of one is not the others'."""
        for one, result in zip(
            unit, await asyncio.gather(*map(self._commit, unit), return_exceptions=True), strict=True
        ):
            if isinstance(result, Exception):
                log.warning("group %d was not committed: %s", one.lease.uid, result)
                with contextlib.suppress(BufferFault, OSError):
                    await self._held.release([one.lease])
        self._metrics.leases.set(len(self._held))

    async def _commit(self, one: Generated) -> None:
        lease = one.lease
        if any(sequence.finish_reason == "abort" for sequence in one.sequences):
            self._metrics.wasted.labels("aborted").inc(one.tokens)
            await self._held.release([lease])
            return
        try:
            with self._metrics.score_seconds.time():
                scored = await self._scorer.score(
                    session=f"{lease.incarnation}-{lease.uid}-{lease.epoch}",
                    prompt_ids=one.prompt_ids,
                    responses=[sequence.output_ids for sequence in one.sequences],
                )
        except Unscorable as error:
            self._metrics.wasted.labels("unscorable").inc(one.tokens)
            self._held.drop(lease)
            await self._buffer.fail(lease, reason=str(error))
            log.warning("group %d cannot be scored: %s", lease.uid, error)
            return
        result = await self._buffer.commit(lease, _group(one, scored))
        self._held.drop(lease)
        self._metrics.groups.labels(result.value).inc()
        if result in (CommitResult.ADMITTED, CommitResult.DUPLICATE):
            self._metrics.samples.inc(len(one.sequences))
        else:
            self._metrics.wasted.labels(result.value).inc(one.tokens)


def _group(one: Generated, scored: Sequence[Scored]) -> SampleGroup:
    samples = tuple(
        Sample.build(
            index=i,
            output_ids=sequence.output_ids,
            logprobs=sequence.logprobs,
            versions=sequence.versions,
            reward=score.reward,
            scores=score.scores,
        )
        for i, (sequence, score) in enumerate(zip(one.sequences, scored, strict=True))
    )
    return SampleGroup(
        uid=one.lease.uid,
        epoch=one.lease.epoch,
        incarnation=one.lease.incarnation,
        worker=one.lease.worker,
        prompt_index=one.lease.prompt_index,
        prompt_ids=token_ids(one.prompt_ids),
        samples=samples,
    )


async def serve(settings: Settings) -> int:
    """Run one driver until SIGTERM."""
    stop = web.stop_event()
    job = settings.job_config()
    if not settings.environment_url and not settings.reward_url:
        raise ConfigError("neither MOERL_ENVIRONMENT_URL nor MOERL_REWARD_URL is set: nothing would give a reward")
    try:
        task = await asyncio.to_thread(load, job.dataset, seed=job.algorithm.seed)
    except TaskError as error:
        raise ConfigError(str(error)) from error
    metrics = DriverMetrics()
    starting = "connecting to the buffer"
    driver: Driver | None = None
    app = web.application(registry=metrics.registry, ready=lambda: driver.not_ready() if driver else starting)
    async with (
        web.serving(app, host=settings.bind, port=settings.agent_port),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session,
    ):
        opened = await web.until_stopped(Buffer.connect(settings.buffer_url, settings.buffer_password), stop)
        if opened is None:
            return web.INTERRUPTED
        async with opened as buffer:
            driver = Driver(
                job=job,
                task=task,
                worker=settings.worker,
                buffer=buffer,
                engine=EngineClient(session, settings.engine_url),
                scorer=Scorer(
                    session,
                    environment_url=settings.environment_url,
                    reward_url=settings.reward_url,
                    on_retry=lambda _: metrics.retries.inc(),
                ),
                metrics=metrics,
                weights_dir=settings.run_dir / f"weights-{settings.worker}",
            )
            try:
                await web.until_stopped(driver.run(), stop)
            except EngineRefused as error:
                raise SystemExit(f"moerl driver: giving up after {MAX_REFUSALS} refusals: {error}") from None
            finally:
                log.info("%d leases given back", await driver.give_back())
    return web.INTERRUPTED


def main() -> int:
    """Entry point of the driver."""
    return asyncio.run(serve(Settings.from_env()))
