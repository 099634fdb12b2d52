"""Health that goes red for the ways in which an operator dies while its process lives.

Seen in the field: a watch that ended silently while /healthz stayed green (dask-kubernetes #620, kopf #1276),
a queue that no worker serves any more, an event loop that something blocks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# The server sends a bookmark about once a minute, and kopf reconnects a stream after 70 s without one: a stream
# that shows no byte for longer than both together is not being read by anybody.
WATCH_SILENT_SECONDS = 180.0
QUEUE_OLDEST_SECONDS = 120.0
WORKING_SECONDS = 300.0
LAG_SECONDS = 5.0
LAG_PROBE_SECONDS = 1.0
LAG_PROBES = 30


@dataclass(slots=True)
class Health:
    """The state that the probes read. Ages are seconds of the event loop's clock."""

    stream_ages: Callable[[], Mapping[str, float]]
    queue_oldest: Callable[[], float]
    longest_work: Callable[[], float]
    expected_streams: frozenset[str] = frozenset()
    synced: bool = False
    unsynced: str = "the cache is not filled yet"  # why it is not, as far as is known
    _lags: deque[float] = field(default_factory=lambda: deque(maxlen=LAG_PROBES), init=False)

    @property
    def lag(self) -> float:
        """The worst lag of the event loop in the last half minute, in seconds."""
        return max(self._lags, default=0.0)

    def live_problems(self) -> list[str]:
        """Why the process should be restarted; empty when it is well."""
        return [*self._loop_problems(), *(self._stream_problems() if self.synced else []), *self._queue_problems()]

    def ready_problems(self) -> list[str]:
        """Why the operator does not do its work now; empty when it does."""
        if not self.synced:
            return [self.unsynced]
        return self.live_problems()

    async def beat(self) -> None:
        """Measure the loop's lag for ever: how much later than asked a sleep ends."""
        loop = asyncio.get_running_loop()
        while True:
            beat = loop.time()
            await asyncio.sleep(LAG_PROBE_SECONDS)
            self._lags.append(max(0.0, loop.time() - beat - LAG_PROBE_SECONDS))

    def _loop_problems(self) -> list[str]:
        return [f"the event loop lags by {self.lag:.1f} s"] if self.lag > LAG_SECONDS else []

    def _stream_problems(self) -> list[str]:
        ages = self.stream_ages()
        silent = {name: ages[name] for name in self.expected_streams if ages.get(name, 0) > WATCH_SILENT_SECONDS}
        absent = self.expected_streams - set(ages)
        problems = [f"the watch of {name} has been silent for {age:.0f} s" for name, age in sorted(silent.items())]
        return problems + [f"there is no watch of {name}" for name in sorted(absent)]

    def _queue_problems(self) -> list[str]:
        problems = []
        if (oldest := self.queue_oldest()) > QUEUE_OLDEST_SECONDS:
            problems.append(f"a job has waited in the queue for {oldest:.0f} s")
        if (longest := self.longest_work()) > WORKING_SECONDS:
            problems.append(f"a reconcile has been running for {longest:.0f} s")
        return problems
