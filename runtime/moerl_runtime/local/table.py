"""The live table of a local run: the same figures as `kubectl get moerljobs`, and each process's state."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moerl_runtime.agent import progress

from .supervisor import LocalRun, Receipt

_SPARKS = "▁▂▃▄▅▆▇█"


def render(run: LocalRun, document: dict[str, Any] | None, *, name: str) -> RenderableType:
    """The table at this moment; `document` is the trainer's progress file."""
    figures = Table(box=None, pad_edge=False)
    columns = (
        "NAME",
        "STATE",
        "ITERATION",
        "REWARD",
        "EXACT",
        "ROLLOUTS",
        "SAMPLES/S",
        "STALENESS",
        "VERSION",
        "ATTEMPT",
    )
    for column in columns:
        figures.add_column(column)
    row = document or {}
    stale = row.get("stalenessVersions") or {}
    drivers = [child for child in run.children.values() if child.member.role == "driver"]
    figures.add_row(
        name,
        str(row.get("phase", "Starting")),
        f"{row.get('iteration', 0)}/{row.get('iterations', '?')}",
        _number(row.get("reward"), 2),
        _number(row.get("exactMatch"), 2),
        f"{sum(child.running for child in drivers)}/{len(drivers)}",
        _number(row.get("samplesPerSecond"), 0),
        f"{_number(stale.get('mean'), 1)} max {stale.get('max', '-')}",
        str(row.get("policyVersion", "-")),
        str(run.attempt),
    )
    return Group(figures, Text(spark(row.get("history") or [])), _processes(run))


def line(document: dict[str, Any] | None) -> str:
    """The figures as one line, for output that is not a terminal."""
    row = document or {}
    return (
        f"{row.get('phase', 'Starting')} {row.get('iteration', 0)}/{row.get('iterations', '?')} "
        f"version {row.get('policyVersion', '-')} reward {_number(row.get('reward'), 3)} "
        f"exact {_number(row.get('exactMatch'), 3)} {_number(row.get('samplesPerSecond'), 0)} samples/s"
    )


def receipt(found: Receipt) -> str:
    """The ledger as one line: every group that was issued, by what became of it."""
    parts = [f"{name} {count}" for name, count in asdict(found.ledger).items() if name != "issued" and count]
    audit = "; ".join(found.problems) or "audit clean"
    return f"groups: issued {found.ledger.issued} = {' + '.join(parts) or '0'}; {audit}"


def spark(history: list[list[float]], width: int = 72) -> str:
    """The reward so far as a line of blocks, 0 to 1."""
    rewards = [point[1] for point in progress.thinned(history, width) if point[1] is not None]
    if not rewards:
        return ""
    marks = "".join(_SPARKS[min(len(_SPARKS) - 1, max(0, int(value * len(_SPARKS))))] for value in rewards)
    return f"reward {marks} {rewards[-1]:.2f}"


def _processes(run: LocalRun) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("PROCESS", "PID", "STATE", "STARTS", "AGE"):
        table.add_column(column, style="dim")
    for name, child in sorted(run.children.items()):
        state = "Running" if child.running else f"exit {child.exit_code}" if child.exit_code is not None else "-"
        pid = str(child.process.pid) if child.process and child.running else "-"
        table.add_row(name, pid, state, str(child.starts), f"{time.monotonic() - child.started_at:.0f}s")
    return table


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"
