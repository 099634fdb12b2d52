"""Starts, watches, restarts and ends the processes of a local run, with the operator's rules in small.

A rollout unit or a service that ends is started again after a backoff and costs nobody else anything. The trainer that
ends with another code than 0 begins a new attempt, up to spec.trainer.failurePolicy.maxRestarts. The buffer's end is
the run's end. Children die with this process, even when it is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.model import BufferFault, Ledger
from moerl_runtime.web import INTERRUPTED

from .layout import Layout, Member

log = logging.getLogger(__name__)

GRACE_SECONDS = 20.0
"""From SIGTERM to SIGKILL at the end of a run; the trainer checkpoints in it."""
MAX_BACKOFF_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """One process and its history."""

    member: Member
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    started_at: float = field(default_factory=time.monotonic)
    exit_code: int | None = None

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self.process is not None and self.process.returncode is None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of every group, asked of the buffer before it ends; `problems` are what its audit found."""

    ledger: Ledger
    problems: tuple[str, ...]


class LocalRun:
    """One run. `run` returns the exit code: 0, the trainer's last code, or 143 after a signal."""

    def __init__(self, layout: Layout, *, first_attempt: int, logs: Path, max_restarts: int) -> None:
        self._layout = layout
        self._logs = logs
        self._max_restarts = max_restarts
        self._stopping = False
        self.attempt = first_attempt
        self.children: dict[str, Child] = {}
        self.failure = ""
        self.receipt: Receipt | None = None

    async def run(self, stop: asyncio.Event) -> int:
        """Run until the trainer has succeeded or used up its attempts, the buffer ends, or `stop` is set."""
        self._logs.mkdir(parents=True, exist_ok=True)
        keepers = [asyncio.create_task(self._keep(member)) for member in self._layout.services[1:]]
        buffer = asyncio.create_task(self._buffer())
        units: dict[str, list[Member]] = {}
        for member in self._layout.rollouts:
            units.setdefault(member.unit, []).append(member)
        keepers += [asyncio.create_task(self._keep(*members)) for members in units.values()]
        trainer = asyncio.create_task(self._trainer())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([trainer, buffer, stopped], return_when=asyncio.FIRST_COMPLETED)
            if trainer.done():
                await self._ask_receipt()
                return trainer.result()
            return INTERRUPTED if stopped.done() else 1
        finally:
            self._stopping = True
            await self._end_all()
            for task in (*keepers, buffer, trainer, stopped):
                task.cancel()
            await asyncio.gather(*keepers, buffer, trainer, stopped, return_exceptions=True)

    async def _ask_receipt(self) -> None:
        common = self._layout.common
        try:
            async with await Buffer.connect(
                common["MOERL_BUFFER_URL"], common["MOERL_BUFFER_PASSWORD"], timeout_seconds=5
            ) as buffer:
                self.receipt = Receipt(ledger=await buffer.ledger(), problems=(await buffer.audit()).problems)
        except (BufferFault, OSError) as error:
            log.warning("no ledger: %s", error)

    async def _buffer(self) -> None:
        code = await self._once(self._layout.services[0])
        if not self._stopping:
            self.failure = f"the buffer ended with code {code}; see {self._log(self._layout.services[0])}"

    async def _trainer(self) -> int:
        restarts = 0
        while True:
            member, agent = self._layout.trainer(self.attempt)
            beside = asyncio.create_task(self._once(agent))
            code = await self._once(member)
            if child := self.children.get(agent.name):
                _signal(child, signal.SIGTERM)
            await beside
            if code == 0 or self._stopping:
                return code
            restarts += 1
            # Configuration mistakes (2) come back the same however often they are tried.
            if code == 2 or restarts > self._max_restarts:
                self.failure = f"the trainer ended with code {code} in attempt {self.attempt}; see {self._log(member)}"
                return code
            log.warning(
                "trainer attempt %d ended with code %d; attempt %d follows", self.attempt, code, self.attempt + 1
            )
            self.attempt += 1

    async def _keep(self, *members: Member) -> None:
        """Run the members of a unit; when one ends, end the others and start all again."""
        backoff = 0.5
        while not self._stopping:
            began = time.monotonic()
            tasks = [asyncio.create_task(self._once(member)) for member in members]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for member in members:
                _signal(self.children[member.name], signal.SIGTERM)
            await asyncio.gather(*tasks)
            backoff = 0.5 if time.monotonic() - began > 30 else min(backoff * 2, MAX_BACKOFF_SECONDS)
            if not self._stopping:
                log.warning("%s ended and starts again in %.1f s", members[0].unit, backoff)
                await asyncio.sleep(backoff)

    async def _once(self, member: Member) -> int:
        """Start a member and wait for its end; its exit code (128 + signal when killed)."""
        child = self.children.setdefault(member.name, Child(member))
        child.member, child.starts, child.started_at = member, child.starts + 1, time.monotonic()
        with self._log(member).open("ab") as stream:
            child.process = await asyncio.create_subprocess_exec(
                *member.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **member.env},
                start_new_session=True,  # Ctrl-C goes to this process, which ends the others in order
                preexec_fn=_die_with_parent(os.getpid()),
            )
        code = await child.process.wait()
        child.exit_code = code if code >= 0 else 128 - code
        return child.exit_code

    async def _end_all(self) -> None:
        """The trainer and the rollouts first, since they still talk to the buffer; then the rest."""
        running = [child for child in self.children.values() if child.running]
        services = {member.name for member in self._layout.services}
        for group in (
            [child for child in running if child.member.name not in services],
            [child for child in running if child.member.name in services],
        ):
            for child in group:
                _signal(child, signal.SIGTERM)
            waits = [asyncio.create_task(child.process.wait()) for child in group if child.process]
            if waits:
                await asyncio.wait(waits, timeout=GRACE_SECONDS)
            for child in group:
                _signal(child, signal.SIGKILL)
            await asyncio.gather(*waits)

    def _log(self, member: Member) -> Path:
        return self._logs / f"{member.name}.log"


def _signal(child: Child, number: signal.Signals) -> None:
    if child.running and child.process is not None:
        child.process.send_signal(number)


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    if os.uname().sysname != "Linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def setup() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return setup
