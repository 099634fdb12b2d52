"""Shows a run while it goes: a live screen in a terminal, a line about every ten seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moerl_local.demo.chart import curve
from moerl_local.demo.figures import clock
from moerl_local.demo.record import CONTROLLER, Record

PLAIN_SECONDS = 10.0
_STYLE = {"Running": "green", "Succeeded": "green", "Pending": "yellow", "Failed": "red"}


class View:
    """Use as a context manager; `show` after every look at the cluster."""

    def __init__(self, record: Record, *, console: Console) -> None:
        self._record = record
        self._console = console
        self._began = time.monotonic()
        self._last = 0.0
        self._row = ""
        self._said: set[str] = set()
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, table: str) -> None:
        """`table` is what `kubectl get moerljobs` prints now."""
        if self._live:
            self._live.update(self._screen(table))
        else:
            self._lines(table)

    def end(self) -> None:
        """After the last `show`: the curve, for those who saw only lines."""
        if not self._live and self._record.reward_history:
            self._console.print("\n".join(self._curve()), highlight=False, soft_wrap=True)

    def _screen(self, table: str) -> RenderableType:
        parts: list[RenderableType] = [
            Text(f"$ kubectl get moerljobs   {clock(time.monotonic() - self._began)}", style="dim")
        ]
        parts.append(Text(table.rstrip(), no_wrap=True, overflow="ellipsis"))
        parts.append(self._pods())
        if self._record.reward_history:
            parts.append(Text("\n".join(self._curve())))
        parts += [Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis") for line in self._news()[-4:]]
        return Group(*parts)

    def _pods(self) -> RenderableType:
        grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("POD", "ROLE", "PHASE", "READY", "NODE"):
            grid.add_column(name, no_wrap=True)
        living = [pod for pod in self._record.pods.values() if "gone" not in pod]
        for pod in sorted(living, key=lambda pod: (str(pod["role"]), str(pod["name"]))):
            phase = str(pod["phase"])
            ready = "yes" if pod.get("ready") and phase == "Running" else ""
            grid.add_row(pod["name"], pod["role"], Text(phase, style=_STYLE.get(phase, "")), ready, pod["node"])
        return grid

    def _curve(self) -> Sequence[str]:
        iterations = float(self._record.report.get("iterations") or 0)
        exact = f", held-out exact match {self._record.exact_match[-1][1]:.2f}" if self._record.exact_match else ""
        title = f"     training reward {self._record.reward_history[-1][1]:.2f}{exact}"
        return [title, *curve(self._record.reward_history, x_max=iterations)]

    def _news(self) -> list[str]:
        return [f"{e['reason']}: {e['note']}" for e in self._record.events if e["by"] == CONTROLLER]

    def _lines(self, table: str) -> None:
        for line in self._news():
            if line not in self._said:
                self._said.add(line)
                self._say(line)
        rows = table.rstrip().splitlines()
        state = rows[1].split()[1] if len(rows) > 1 and len(rows[1].split()) > 1 else ""
        if not rows or (state == self._row and time.monotonic() - self._last < PLAIN_SECONDS):
            return
        if not self._row:
            self._say(rows[0])
        self._row, self._last = state, time.monotonic()
        self._say(rows[-1])

    def _say(self, line: str) -> None:
        self._console.print(
            f"{clock(time.monotonic() - self._began):>6}  {line}", highlight=False, soft_wrap=True, markup=False
        )
