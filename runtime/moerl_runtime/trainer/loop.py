"""The trainer's loop: issue, take, train, publish, evaluate, checkpoint, settle; and how it resumes and ends.

Order matters in three places. A version is published right after its step, so that rollouts go on while the trainer
evaluates and checkpoints. Groups are settled (their payload freed) only after the checkpoint that holds what was learnt
from them is durable. The final marker is written last of all; only then may the process exit 0.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TypeVar

import torch

from moerl_runtime.agent.progress import Final
from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.records import SampleGroup
from moerl_runtime.checkpoint import marker, storage
from moerl_runtime.checkpoint.marker import Marker
from moerl_runtime.config import ConfigError, JobConfig, Settings
from moerl_runtime.tasks import task as tasks
from moerl_runtime.web import INTERRUPTED
from moerl_runtime.weights.publish import Publisher, highest_version

from . import collective
from .learner import Learner
from .telemetry import Telemetry, Timing

log = logging.getLogger(__name__)
T = TypeVar("T")

KEEP_CHECKPOINTS = 2
MAX_CHECKPOINT_FAILURES = 5
"""Consecutive iterations on which a checkpoint may fail before the trainer gives up."""
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.01, 0.5


class TrainerLoop:
    """One attempt of the trainer. Make it with `open`, then `run`."""

    def __init__(
        self,
        config: JobConfig,
        buffer: Buffer,
        telemetry: Telemetry,
        stop: asyncio.Event,
        *,
        attempt: int,
        learner: Learner,
        thread: ThreadPoolExecutor,
    ) -> None:
        assert config.storage.checkpoints is not None
        assert config.storage.artifacts is not None
        self._config = config
        self._algorithm = config.algorithm
        self._checkpoints = config.storage.checkpoints
        self._final_uri = storage.join(config.storage.artifacts, "final")
        self._buffer = buffer
        self._telemetry = telemetry
        self._stop = stop
        self._attempt = attempt
        self._learner = learner
        self._thread = thread
        self._step = 0
        self._saved_step = 0
        self._failures = 0
        self._publisher: Publisher | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, config: JobConfig, buffer: Buffer, telemetry: Telemetry, stop: asyncio.Event
    ) -> AsyncIterator[TrainerLoop]:
        """Make the model and the process group, and take both down again."""
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        task = tasks.load(config.dataset, seed=config.algorithm.seed)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch") as thread:
            running = asyncio.get_running_loop()
            try:
                learner = await running.run_in_executor(thread, Learner.create, config, task)
                yield cls(config, buffer, telemetry, stop, attempt=settings.attempt, learner=learner, thread=thread)
            finally:
                collective.stop()

    async def run(self) -> int:
        """Train to the last iteration; 0 once the final policy is durable, 143 when interrupted."""
        await self._resume()
        self._telemetry.start()
        while self._step < self._algorithm.iterations:
            if not await self._iterate():
                return await self._interrupted()
        await self._finish()
        return 0

    # Start

    async def _resume(self) -> None:
        found = await asyncio.to_thread(marker.latest, self._checkpoints)
        if found is not None:
            self._check_owner(found)
            uri = marker.folder(self._checkpoints, attempt=found.attempt, step=found.step)
            await self._torch(lambda: self._learner.restore(uri))
            self._step = self._saved_step = found.step
            self._telemetry.restored(found, uri)
            log.info("resumed from %s (version %d)", uri, found.version)
        begun = await self._buffer.begin(self._attempt, self._step)
        log.info(
            "attempt %d begins after iteration %d: %d groups taken back, %d settled, dataset cursor %d",
            self._attempt, self._step, begun.requeued, begun.settled, begun.cursor,
        )  # fmt: skip
        highest = max(await highest_version(self._buffer), found.version if found else 0)
        self._publisher = Publisher(
            self._buffer,
            attempt=self._attempt,
            keep=self._algorithm.max_staleness_versions + 3,
            highest_seen=highest,
        )
        await self._publisher.adopt()
        self._telemetry.data_path = self._learner.data_path()
        self._telemetry.version = await self._publish()
        if (exact := await self._torch(self._learner.exact_match)) is not None:
            self._telemetry.evaluated(exact)

    def _check_owner(self, found: Marker) -> None:
        if found.job and self._config.uid and found.job != self._config.uid:
            raise ConfigError(
                f"spec.storage.checkpoints: {self._checkpoints} holds checkpoints of another job (uid {found.job}); "
                "name an empty folder, and start from that job's policy through spec.model.uri if you want it"
            )
        if found.attempt > self._attempt:
            raise ConfigError(
                f"spec.storage.checkpoints: {self._checkpoints} holds checkpoints of attempt {found.attempt}, "
                f"this is attempt {self._attempt}; name an empty folder"
            )

    # One iteration

    async def _iterate(self) -> bool:
        """Train one batch and publish the result; False when interrupted while waiting for the batch."""
        began = time.monotonic()
        step, version = self._step + 1, self._telemetry.version
        groups = await self._take(step, version)
        if groups is None:
            return False
        taken = time.monotonic()
        stats, stale = await self._torch(lambda: self._learner.train(groups, step=step, version=version))
        self._step = step
        trained = time.monotonic()
        version = await self._publish()
        timing = Timing(wait=taken - began, train=trained - taken, publish=time.monotonic() - trained)
        self._telemetry.iterated(step, version, stats, timing=timing, stale_mean=stale.mean, stale_max=stale.worst)
        last = step == self._algorithm.iterations
        if last or step % self._algorithm.evaluate_every_iterations == 0:
            await self._evaluate()
        due = step - self._saved_step >= self._algorithm.checkpoint_every_iterations
        if due and not last:
            await self._checkpoint_or_later()
        return not self._stop.is_set()

    async def _take(self, step: int, version: int) -> list[SampleGroup] | None:
        batch, staleness = self._algorithm.prompts_per_iteration, self._algorithm.max_staleness_versions
        began = time.monotonic()
        while not self._stop.is_set():
            await self._buffer.issue((staleness + 1) * batch, batch=batch, max_staleness=staleness)
            groups = await self._buffer.take(step, self._attempt, batch=batch, version=version, max_staleness=staleness)
            if groups is not None:
                return groups
            # Waiting costs the buffer a poll; a long wait is polled less often.
            pause = min(MAX_POLL_SECONDS, max(MIN_POLL_SECONDS, 0.05 * (time.monotonic() - began)))
            await asyncio.sleep(pause)
        return None

    async def _publish(self) -> int:
        assert self._publisher is not None
        tensors, files = await self._torch(self._learner.weights)
        return await self._publisher.publish(tensors, files, step=self._step)

    async def _evaluate(self) -> None:
        self._telemetry.enter("Evaluating")
        if (exact := await self._torch(self._learner.exact_match)) is not None:
            self._telemetry.evaluated(exact)
        self._telemetry.enter("Training")

    # Checkpoints

    async def _checkpoint_or_later(self) -> None:
        """Checkpoint; a failure is tried again after the next iteration, a few times."""
        try:
            await self._checkpoint()
            self._failures = 0
        except storage.StorageError as error:
            self._failures += 1
            if self._failures >= MAX_CHECKPOINT_FAILURES:
                raise
            log.warning("%s (failure %d of %d)", error, self._failures, MAX_CHECKPOINT_FAILURES)

    async def _checkpoint(self) -> None:
        step, version = self._step, self._telemetry.version
        began = time.monotonic()
        snapshot, ledger = await self._buffer.snapshot(), await self._buffer.ledger()
        uri = marker.folder(self._checkpoints, attempt=self._attempt, step=step)
        await self._torch(lambda: self._learner.save(uri, step=step, version=version))
        document = Marker(
            attempt=self._attempt,
            step=step,
            version=version,
            job=self._config.uid,
            dataset=asdict(snapshot),
            ledger=asdict(ledger),
            exact_match=self._telemetry.exact_match,
            history=self._telemetry.history,
        )
        await asyncio.to_thread(marker.write, self._checkpoints, document)
        self._saved_step = step
        settled = await self._buffer.settle(step, self._attempt)
        await asyncio.to_thread(marker.prune, self._checkpoints, keep=KEEP_CHECKPOINTS)
        log.info("checkpoint %s in %.2f s, %d groups settled", uri, time.monotonic() - began, settled)

    # End

    async def _interrupted(self) -> int:
        if self._step > self._saved_step:
            try:
                await self._checkpoint()
            except storage.StorageError as error:
                log.warning("interrupted, and the last checkpoint failed: %s", error)
        log.info("interrupted after iteration %d; the next attempt resumes from %d", self._step, self._saved_step)
        return INTERRUPTED

    async def _finish(self) -> None:
        if self._step > self._saved_step:
            await self._checkpoint()
        cancelled = await self._buffer.finish(self._attempt)
        log.info("last iteration done, %d open groups cancelled", cancelled)
        await self._torch(lambda: self._learner.export(self._final_uri))
        version = self._telemetry.version
        location = storage.join(self._final_uri, marker.NAME)
        document = {
            "job": self._config.uid,
            "attempt": self._attempt,
            "step": self._step,
            "version": version,
            "exactMatch": self._telemetry.exact_match,
        }
        await asyncio.to_thread(storage.write, location, json.dumps(document, indent=1).encode())
        self._telemetry.final = Final(version=version, uri=self._final_uri, marker=location)
        self._telemetry.enter("Finished")
        log.info("final policy, version %d, at %s", version, self._final_uri)

    async def _torch(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
