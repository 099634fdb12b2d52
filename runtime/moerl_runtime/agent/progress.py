"""What trainer rank 0 tells the agent beside it: one small file, replaced atomically.

A file, because it survives both processes' restarts, needs no port, and a trainer busy in a kernel cannot block the
agent. The field names are those of report.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

FILE = "progress.json"
MAX_HISTORY = 200

Phase = Literal["Starting", "Training", "Evaluating", "Finished"]


@dataclass(frozen=True, slots=True)
class Final:
    """The finished policy: its version, folder and the marker object that proves it complete."""

    version: int
    uri: str
    marker: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Trainer rank 0's state. `last_progress_time` is when an iteration last ended (RFC 3339), None before the first.

    `history` holds (iteration, mean reward). Rates are over the last iterations, not over the run.
    """

    phase: Phase
    iteration: int
    iterations: int
    policy_version: int
    reward: float | None = None
    exact_match: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    restored_from: str | None = None
    final: Final | None = None
    last_progress_time: str | None = None
    history: Sequence[tuple[int, float]] = ()
    data_path: dict[str, Any] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        """The part of report.json that the trainer knows."""
        return {
            "phase": self.phase,
            "iteration": self.iteration,
            "iterations": self.iterations,
            "policyVersion": self.policy_version,
            "reward": _rounded(self.reward),
            "exactMatch": _rounded(self.exact_match),
            "samplesPerSecond": _rounded(self.samples_per_second),
            "tokensPerSecond": _rounded(self.tokens_per_second),
            "stalenessVersions": {"mean": _rounded(self.staleness_mean), "max": self.staleness_max},
            "restoredFrom": self.restored_from,
            "final": asdict(self.final) if self.final else None,
            "lastProgressTime": self.last_progress_time,
            "history": [[step, _rounded(reward)] for step, reward in thinned(self.history, MAX_HISTORY)],
            "dataPath": self.data_path,
        }


def write(progress: Progress, run_dir: Path) -> None:
    """Replace the progress file: a reader sees the old one or the new one, whole."""
    path = run_dir / FILE
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(progress.wire(), separators=(",", ":")))
    temporary.replace(path)


def read(run_dir: Path) -> dict[str, Any] | None:
    """The last progress, None before the first or if the file is not readable as JSON."""
    try:
        document = json.loads((run_dir / FILE).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def thinned(points: Sequence[Any], limit: int) -> list[Any]:
    """At most `limit` points, evenly spread, the first and the last kept."""
    if len(points) <= limit:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (limit - 1))] for i in range(limit)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
