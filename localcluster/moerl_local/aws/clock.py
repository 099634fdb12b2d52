"""Emulated time: a clock that runs faster than the wall, or one that only a test moves.

Durations of AWS (minutes) are counted in emulated seconds since the emulator first started. Timestamps in answers are
wall-clock times at which a thing happened here, so that a client can compare them with its own clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Emulated seconds, and how they map to the wall."""

    manual: bool

    def now(self) -> float:
        """Emulated seconds since the first start."""

    def timestamp(self, moment: float | None = None) -> float:
        """Unix time (seconds) for an emulated moment, now by default."""

    def wall_seconds_until(self, moment: float) -> float | None:
        """Wall seconds until that emulated moment, or None where only `advance` gets there."""


class ScaledClock:
    """`scale` emulated seconds pass per wall second. `start` continues an earlier run."""

    manual = False

    def __init__(self, scale: float, *, start: float = 0.0) -> None:
        if scale <= 0:
            raise ValueError("the time scale must be above 0 (1 = real time, 60 = a minute a second)")
        self.scale = scale
        self._start = start
        self._wall = time.time()
        self._monotonic = time.monotonic()

    def now(self) -> float:
        """Emulated seconds since the first start."""
        return self._start + (time.monotonic() - self._monotonic) * self.scale

    def jump(self, seconds: float) -> None:
        """Go forward at once by emulated seconds."""
        self._start = self.now() + seconds
        self._wall, self._monotonic = time.time(), time.monotonic()

    def timestamp(self, moment: float | None = None) -> float:
        """Unix time of an emulated moment; one before the last start or jump counts as that."""
        passed = (self.now() if moment is None else moment) - self._start
        return self._wall + max(0.0, passed) / self.scale

    def wall_seconds_until(self, moment: float) -> float | None:
        """Wall seconds until that emulated moment, 0 where it has passed."""
        return max(0.0, (moment - self.now()) / self.scale)


class ManualClock:
    """Time stands still until `set` moves it."""

    manual = True

    def __init__(self, *, start: float = 0.0) -> None:
        self._now = start
        self._epoch = time.time() - start

    def now(self) -> float:
        """Emulated seconds since the first start."""
        return self._now

    def set(self, moment: float) -> None:
        """Move forward to an emulated moment; never back."""
        self._now = max(self._now, moment)

    def timestamp(self, moment: float | None = None) -> float:
        """Unix time: the wall at start plus what was advanced."""
        return self._epoch + (self._now if moment is None else moment)

    def wall_seconds_until(self, moment: float) -> float | None:
        """0 where the moment has passed, None else: only `set` gets there."""
        return 0.0 if moment <= self._now else None
