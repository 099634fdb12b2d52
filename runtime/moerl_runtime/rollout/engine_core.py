"""The native engine without its HTTP: a queue of requests, one torch thread, one weight version at a time.

Everything that waits when the torch thread becomes free is sampled as one batch. Weights are loaded by that same
thread, so an update never falls inside a batch and every token of a batch has one version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.model.tiny import load_folder

from . import protocol
from .engine_sampler import Row, Sampling, sample

log = logging.getLogger(__name__)

MAX_BATCH_ROWS = 2048
"""Sequences in one batch; more requests wait for the next one. Bounds the key-value cache."""


class Refused(Exception):
    """A request that is answered with an ErrorReply."""

    def __init__(self, code: protocol.ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class _Serving:
    model: PreTrainedModel
    version: int


@dataclass(eq=False)
class _Pending:
    request: protocol.GenerateRequest
    rows: list[Row]
    done: asyncio.Future[protocol.GenerateResponse]
    aborted: bool = field(default=False)


class EngineCore:
    """State machine of one replica: EMPTY -> LOADING -> READY <-> PAUSED, and FAILED after a failed load."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch")
        self._generator = torch.Generator()
        self._generator.seed()
        # Model and version in one attribute: the torch thread reads both at once.
        self._serving: _Serving | None = None
        self._failed = False
        self._message = "no weights were loaded yet"
        self._loading = 0
        self._paused = False
        self._stopping = False
        self._waiting: list[_Pending] = []
        self._running: list[_Pending] = []
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the batching task on the running loop."""
        self._worker = asyncio.create_task(self._work(), name="engine")

    async def stop(self) -> None:
        """End running requests as aborted and stop."""
        self._stopping = True
        self.abort(None)
        await asyncio.gather(*(p.done for p in (*self._running, *self._waiting)), return_exceptions=True)
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def healthy(self) -> bool:
        """False once the batching task has died or the engine is stopping."""
        return self._worker is not None and not self._worker.done() and not self._stopping

    @property
    def state(self) -> protocol.EngineState:
        """What the engine can do now."""
        if self._loading:
            return protocol.EngineState.LOADING
        if self._serving is None:
            return protocol.EngineState.FAILED if self._failed else protocol.EngineState.EMPTY
        return protocol.EngineState.PAUSED if self._paused else protocol.EngineState.READY

    @property
    def report(self) -> protocol.VersionReport:
        """The version that serves, and the state."""
        return protocol.VersionReport(version=self._version, state=self.state, message=self._message)

    @property
    def _version(self) -> int | None:
        return self._serving.version if self._serving else None

    async def generate(self, request: protocol.GenerateRequest) -> protocol.GenerateResponse:
        """Queue a request and wait for its sequences. Raises Refused."""
        self._admit(request)
        sampling = Sampling(
            max_new_tokens=request.sampling.max_new_tokens,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            stop_tokens=frozenset(request.sampling.stop_token_ids),
        )
        pending = _Pending(request, [], asyncio.get_running_loop().create_future())
        for prompt in request.input_ids:
            pending.rows += [
                Row(prompt=prompt, sampling=sampling, cancelled=lambda: pending.aborted) for _ in range(request.n)
            ]
        self._waiting.append(pending)
        self._wake.set()
        try:
            return await pending.done
        except asyncio.CancelledError:  # the caller went away
            pending.aborted = True
            raise

    def abort(self, request_ids: list[str] | None) -> int:
        """End requests between two tokens; what they have is returned to their callers. Returns how many."""
        hit = [
            pending
            for pending in (*self._running, *self._waiting)
            if not pending.aborted and (request_ids is None or pending.request.request_id in request_ids)
        ]
        for pending in hit:
            pending.aborted = True
        return len(hit)

    def pause(self) -> int:
        """Refuse new requests; running ones finish. Returns how many are running or queued."""
        self._paused = True
        return len(self._running) + len(self._waiting)

    def resume(self) -> None:
        """Take requests again."""
        self._paused = False

    async def load(self, request: protocol.LoadRequest) -> protocol.VersionReport:
        """Load a local folder once the running batch is over; requests that come meanwhile are refused.

        Raises Refused: Invalid for a version below the one that serves, Failed for a folder that cannot be loaded
        (the engine is then unready until a load succeeds).
        """
        if self._version is not None and request.version < self._version:
            raise Refused(
                protocol.ErrorCode.INVALID, f"version {request.version} is older than {self._version}, which serves"
            )
        if request.version == self._version:
            return self.report
        self._loading += 1
        began = time.monotonic()
        try:
            # A whole new model takes the place of the old one: a load that fails half-way can mix nothing.
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._thread, _load, Path(request.path))
            self._serving, self._failed, self._message = _Serving(model, request.version), False, ""
        except Exception as error:  # whatever a broken folder raises, the engine must say so and stay alive
            self._serving, self._failed, self._message = None, True, f"loading {request.path} failed: {error}"
            log.error("%s", self._message)
            raise Refused(protocol.ErrorCode.FAILED, self._message) from error
        finally:
            self._loading -= 1
        log.info("version %d serves (loaded in %.3f s)", request.version, time.monotonic() - began)
        return self.report

    def _admit(self, request: protocol.GenerateRequest) -> None:
        codes = protocol.ErrorCode
        if self._loading:
            raise Refused(codes.LOADING, "weights are being loaded")
        if self._serving is None or self._stopping:
            raise Refused(codes.NOT_READY, self._message or "the engine is stopping")
        if self._paused:
            raise Refused(codes.PAUSED, "the engine is paused")
        if request.min_version is not None and self._serving.version < request.min_version:
            raise Refused(
                codes.VERSION_TOO_OLD,
                f"version {self._serving.version} serves, the request asks for {request.min_version} or newer",
            )
        config = self._serving.model.config
        vocabulary = int(config.vocab_size)
        if any(not prompt for prompt in request.input_ids):
            raise Refused(codes.INVALID, "a prompt has no tokens")
        if any(not 0 <= token < vocabulary for prompt in request.input_ids for token in prompt):
            raise Refused(codes.INVALID, f"a token id is outside the vocabulary of {vocabulary}")
        longest = max(map(len, request.input_ids)) + request.sampling.max_new_tokens
        limit = int(config.max_position_embeddings)
        if longest > limit:
            raise Refused(codes.INVALID, f"prompt and max_new_tokens need {longest} positions, the model has {limit}")

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            # One turn of the loop lets requests that arrived together into the same batch.
            await asyncio.sleep(0)
            while batch := self._next_batch():
                self._running = batch
                try:
                    await self._run(batch)
                finally:
                    self._running = []

    def _next_batch(self) -> list[_Pending]:
        """Requests that are sampled together; one with a seed of its own runs alone so that it can be repeated."""
        batch: list[_Pending] = []
        rows = 0
        while self._waiting:
            head = self._waiting[0]
            alone = head.request.sampling.seed is not None
            if batch and (alone or rows + len(head.rows) > MAX_BATCH_ROWS):
                break
            batch.append(self._waiting.pop(0))
            rows += len(head.rows)
            if alone:
                break
        return batch

    async def _run(self, batch: list[_Pending]) -> None:
        began = time.monotonic()

        def work() -> int | None:
            serving = self._serving
            live = [pending for pending in batch if not pending.aborted]
            if serving is None or not live:
                return serving.version if serving else None
            generator = self._generator
            if (seed := live[0].request.sampling.seed) is not None:
                generator = torch.Generator().manual_seed(seed)
            rows = [row for pending in live for row in pending.rows]
            pad = int(serving.model.config.pad_token_id or 0)
            sample(serving.model, rows, pad=pad, generator=generator, interrupted=_all_aborted(live))
            return serving.version

        try:
            version = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:
            log.exception("a batch of %d requests failed", len(batch))
            for pending in batch:
                _refuse(pending, Refused(protocol.ErrorCode.FAILED, f"generation failed: {error}"))
            return
        seconds = time.monotonic() - began
        for pending in batch:
            try:
                self._answer(pending, version, seconds)
            except Refused as refusal:
                _refuse(pending, refusal)

    def _answer(self, pending: _Pending, version: int | None, seconds: float) -> None:
        if pending.done.done():
            return
        if version is None:
            raise Refused(protocol.ErrorCode.NOT_READY, self._message)
        sequences = [
            protocol.Sequence(
                output_ids=row.tokens,
                logprobs=row.logprobs,
                versions=[version] * len(row.tokens),
                version_start=version,
                version_end=version,
                finish_reason="stop" if row.finish == "stop" else "length" if row.finish == "length" else "abort",
            )
            for row in pending.rows
        ]
        pending.done.set_result(protocol.GenerateResponse(sequences=sequences, seconds=seconds))


def _all_aborted(batch: list[_Pending]) -> Callable[[], bool]:
    return lambda: all(pending.aborted for pending in batch)


def _refuse(pending: _Pending, refusal: Refused) -> None:
    if not pending.done.done():
        pending.done.set_exception(refusal)


def _load(folder: Path) -> PreTrainedModel:
    if not folder.is_dir():
        raise FileNotFoundError("no such folder")
    return load_folder(folder)
