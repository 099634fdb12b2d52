"""Says which step runs, and keeps how long each took for the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from moerl_local.demo.plan import STEPS, TITLES
from moerl_local.demo.record import Obj


class Steps:
    """The steps of one run, in the order of the plan."""

    def __init__(self, console: Console, taken: list[Obj]) -> None:
        self._console = console
        self._taken = taken
        self._numbers = {step.key: number for number, step in enumerate(STEPS, 1)}

    def read_bootstrap(self, path: Path) -> None:
        """Take over the times that bootstrap.sh wrote for the steps before this program could run."""
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            key, _, seconds = line.partition("\t")
            if key in TITLES:
                self._taken.append({"key": key, "seconds": float(seconds)})

    @contextmanager
    def step(self, key: str) -> Iterator[Obj]:
        """Time what happens inside; the yielded dict takes a `note` for the report."""
        self._say(f"[{self._numbers[key]}/{len(STEPS)}] {TITLES[key]}")
        began = time.monotonic()
        entry: Obj = {"key": key}
        try:
            yield entry
        finally:
            entry["seconds"] = round(time.monotonic() - began, 1)
            self._taken.append(entry)
        note = f": {entry['note']}" if entry.get("note") else ""
        self._say(f"      {entry['seconds']:.1f} s{note}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
