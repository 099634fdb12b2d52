"""The work queue between events and reconciles, with the semantics of client-go's workqueue.

A key waits at most once however often it is added; a key added while it is worked on is worked on once
more afterwards, never twice at a time; failures back off per key. Time is the event loop's, randomness is
given, so that tests run on virtual time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from random import Random
from typing import Generic, TypeVar

K = TypeVar("K")

BACKOFF_FIRST = 1.0  # seconds
BACKOFF_MOST = 300.0
# After this many keys of the live lane one of the background lane has its turn, so that a storm of events
# cannot hold up the resync for ever.
LIVE_IN_A_ROW = 8


class QueueClosed(Exception):
    """Raised by get() when the queue is closed: the worker's cue to end."""


class WorkQueue(Generic[K]):
    """Keys to be reconciled. All methods are for the one event loop that the queue was made in."""

    def __init__(self, *, rng: Random, first: float = BACKOFF_FIRST, most: float = BACKOFF_MOST) -> None:
        self._rng = rng
        self._first = first
        self._most = most
        self._live: OrderedDict[K, float] = OrderedDict()  # key -> when it was added
        self._background: OrderedDict[K, float] = OrderedDict()
        self._working: set[K] = set()
        self._dirty: dict[K, tuple[bool, float]] = {}  # added while worked on: (background, when)
        self._failures: dict[K, int] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # the earliest timer of a key; others in the heap are void
        self._sequence = itertools.count()
        self._served_live = 0
        self._changed = asyncio.Event()
        self._closed = False

    # --- adding ----------------------------------------------------------------------------------------

    def add(self, key: K, *, background: bool = False) -> None:
        """Have `key` reconciled; `background` for resyncs, which come after live changes."""
        now = self._now()
        if self._closed:
            return
        if key in self._working:
            was_background, since = self._dirty.get(key, (True, now))
            self._dirty[key] = (background and was_background, since)
        elif key in self._live:
            return
        elif background:
            self._background.setdefault(key, now)
        else:
            self._live[key] = self._background.pop(key, now)
        self._changed.set()

    def add_after(self, key: K, delay: float) -> None:
        """Add `key` in `delay` seconds; of several timers of a key the earliest counts."""
        when = self._now() + max(0.0, delay)
        if self._closed or self._due.get(key, when + 1) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._timers, (when, next(self._sequence), key))
        self._changed.set()

    def add_failed(self, key: K) -> float:
        """Add `key` after its backoff, which doubles with every failure until forget(); returns the delay in s.

        Up to a quarter is taken off at random, so that keys that failed together do not come back together.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._first * 2.0 ** min(failures, 32), self._most) * (1 - self._rng.random() / 4)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure backs off from the beginning."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often the key failed in a row."""
        return self._failures.get(key, 0)

    # --- working ---------------------------------------------------------------------------------------

    async def get(self) -> K:
        """The next key; it counts as worked on until done(key). Raises QueueClosed."""
        while True:
            if self._closed:
                raise QueueClosed
            wait = self._promote()
            if key := self._next():
                self._working.add(key[0])
                return key[0]
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """The worker is finished with `key`; if it was added meanwhile it is queued once more."""
        self._working.discard(key)
        if key in self._dirty:
            background, since = self._dirty.pop(key)
            (self._background if background else self._live).setdefault(key, since)
            self._changed.set()

    def close(self) -> None:
        """End all workers that wait or come to wait."""
        self._closed = True
        self._changed.set()

    # --- looking ---------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Keys waiting now, those of timers not counted."""
        return len(self._live) + len(self._background)

    @property
    def working(self) -> int:
        """Keys being reconciled now."""
        return len(self._working)

    @property
    def oldest_age(self) -> float:
        """Seconds that the longest waiting key has waited."""
        since = [next(iter(lane.values())) for lane in (self._live, self._background) if lane]
        return max(0.0, self._now() - min(since)) if since else 0.0

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _next(self) -> tuple[K] | None:
        turn_of_background = self._served_live >= LIVE_IN_A_ROW or not self._live
        if self._background and turn_of_background:
            self._served_live = 0
            return (self._background.popitem(last=False)[0],)
        if self._live:
            self._served_live += 1
            return (self._live.popitem(last=False)[0],)
        return None

    def _promote(self) -> float | None:
        """Queue what is due; the seconds until the next timer, None without one."""
        now = self._now()
        while self._timers:
            when, _, key = self._timers[0]
            if self._due.get(key) != when:
                heapq.heappop(self._timers)  # an earlier timer of this key has fired
            elif when <= now:
                heapq.heappop(self._timers)
                del self._due[key]
                self.add(key)
            else:
                return when - now
        return None
