"""The trainer's words to the outside: one log line an iteration and the progress file that the agent sends on."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moerl_runtime.agent import progress
from moerl_runtime.agent.progress import Final, Phase, Progress

if TYPE_CHECKING:
    from moerl_runtime.checkpoint.marker import Marker

    from .update import UpdateStats

log = logging.getLogger(__name__)

RATE_WINDOW = 10
"""Iterations over which rates are taken."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one iteration: waiting for the batch, training on it, publishing the result."""

    wait: float
    train: float
    publish: float


@dataclass
class Telemetry:
    """Collects what happens and writes it down."""

    run_dir: Path
    iterations: int
    restored_from: str | None = None
    data_path: dict[str, Any] = field(default_factory=dict)
    phase: Phase = "Starting"
    iteration: int = 0
    version: int = 0
    exact_match: float | None = None
    final: Final | None = None
    _reward: float | None = None
    _stale_mean: float | None = None
    _stale_max: int | None = None
    _last: str | None = None
    _history: list[tuple[int, float]] = field(default_factory=list)
    _window: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))

    @property
    def history(self) -> list[tuple[int, float]]:
        """(iteration, mean reward), thinned to what a report may hold."""
        return [(step, round(reward, 4)) for step, reward in progress.thinned(self._history, progress.MAX_HISTORY)]

    def restored(self, found: Marker, uri: str) -> None:
        """A checkpoint was loaded: go on with its figures."""
        self.iteration, self.version, self.exact_match, self.restored_from = (
            found.step, found.version, found.exact_match, uri,
        )  # fmt: skip
        self._history = [(int(step), float(reward)) for step, reward in found.history]

    def start(self) -> None:
        """The loop begins: rates count from here."""
        self._window.append((time.monotonic(), 0, 0))
        self.enter("Training")

    def enter(self, phase: Phase) -> None:
        """Change the phase and write it."""
        self.phase = phase
        self.write()

    def iterated(
        self, step: int, version: int, stats: UpdateStats, *, timing: Timing, stale_mean: float, stale_max: int
    ) -> None:
        """An iteration ended: its policy is published as `version`."""
        self.iteration, self.version = step, version
        self._reward, self._stale_mean, self._stale_max = stats.reward, stale_mean, stale_max
        self._last = progress.now()
        self._history.append((step, stats.reward))
        self._window.append((time.monotonic(), stats.samples, stats.tokens))
        self.write()
        log.info(
            "iteration %d/%d version %d reward %.3f entropy %.3f kl %.1e clip %.1f%% cap %.1f%% no-signal %d "
            "grad %.2f stale %.2f/%d wait %.2fs train %.2fs publish %.2fs %.0f samples/s",
            step, self.iterations, version, stats.reward, stats.entropy, stats.mismatch_kl,
            100 * stats.clip_fraction, 100 * stats.cap_fraction, stats.zero_variance_groups, stats.gradient_norm,
            stale_mean, stale_max, timing.wait, timing.train, timing.publish, self._rates()[0] or 0.0,
        )  # fmt: skip

    def evaluated(self, exact: float) -> None:
        """An evaluation ended."""
        self.exact_match = exact
        log.info("iteration %d: greedy exact match %.3f on held-out prompts", self.iteration, exact)
        self.write()

    def write(self) -> None:
        """Replace the progress file."""
        samples, tokens = self._rates()
        progress.write(
            Progress(
                phase=self.phase,
                iteration=self.iteration,
                iterations=self.iterations,
                policy_version=self.version,
                reward=self._reward,
                exact_match=self.exact_match,
                samples_per_second=samples,
                tokens_per_second=tokens,
                staleness_mean=self._stale_mean,
                staleness_max=self._stale_max,
                restored_from=self.restored_from,
                final=self.final,
                last_progress_time=self._last,
                history=self._history,
                data_path=self.data_path,
            ),
            self.run_dir,
        )

    def _rates(self) -> tuple[float | None, float | None]:
        if len(self._window) < 2:
            return None, None
        seconds = max(self._window[-1][0] - self._window[0][0], 1e-9)
        counted = list(self._window)[1:]
        return sum(item[1] for item in counted) / seconds, sum(item[2] for item in counted) / seconds
