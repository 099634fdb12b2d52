"""Says how far a sequence of slow steps is: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """`what` over `total` steps; use as a context manager, then `start`, `detail`, `done` for each step."""

    def __init__(self, what: str, *, total: int, console: Console | None = None) -> None:
        self._what = what
        self._total = total
        self._console = console or Console()
        self._finished = 0
        self._name = ""
        self._began = time.monotonic()
        self._bar: Bar | None = None
        if self._console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn(f"{what} {{task.fields[step]}}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("[dim]{task.fields[detail]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(what, total=total, step="", detail="")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def start(self, name: str) -> None:
        """A step begins."""
        self._name = name
        self._began = time.monotonic()
        if self._bar:
            self._bar.update(self._task, step=name, detail="")
        else:
            self._say(f"{self._what} {self._finished + 1} of {self._total}: {name}")

    def detail(self, text: str) -> None:
        """What the step is at; shown only where a line can be redrawn."""
        if self._bar:
            self._bar.update(self._task, detail=text)

    def done(self) -> None:
        """The step is over."""
        self._finished += 1
        took = time.monotonic() - self._began
        if self._bar:
            self._bar.advance(self._task)
        if took >= 1 or not self._bar:
            self._say(f"  {self._name}: {took:.1f} s")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)
