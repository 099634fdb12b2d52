"""Starts the cluster's processes so that anybody can find and end them later, whatever became of the launcher.

Each process gets a variable in its environment that names its cluster; children inherit it. Records on disk
are for reading (log, name) and for systems without /proc; the environment is the truth, because it exists
from the first instruction on, so a launcher killed between fork and record leaves no orphan unseen.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from moerl_local.cluster.errors import ClusterError

MARK = "MOERL_CLUSTER_PROCESS"
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A started process; `started` tells it from a later one with the same pid."""

    name: str
    pid: int
    started: str
    log: str


class Processes:
    """The processes of the cluster whose state lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records = folder / "run"

    def start(
        self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Process:
        """Start `name` in a session of its own unless it runs already; its output goes to logs/`name`.log."""
        if running := self.get(name):
            return running
        log = self._folder / "logs" / f"{name}.log"
        for parent in (log.parent, self._records):
            parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **(env or {}), MARK: f"{self._folder}:{name}"},
                cwd=cwd or self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(name, child.pid, _start_time(child.pid) or "", str(log))
        _write_json(self._records / f"{name}.json", asdict(process))
        return process

    def get(self, name: str) -> Process | None:
        """The running process of that name."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            process = Process(**json.loads((self._records / f"{name}.json").read_text()))
            if process.started and _start_time(process.pid) == process.started:
                return process
        return None

    def recorded(self) -> list[str]:
        """Names of all processes ever started and not stopped."""
        return sorted(path.stem for path in self._records.glob("*.json"))

    def pids(self, name: str | None = None) -> set[int]:
        """Every process of this cluster (or of its process `name` and that one's children), this one excluded."""
        records = [self.get(each) for each in ([name] if name else self.recorded())]
        found = {process.pid for process in records if process}
        prefix = f"{MARK}={self._folder}:{name or ''}".encode()
        for pid in _all_pids():
            with contextlib.suppress(OSError):
                for entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                    if entry == prefix or (not name and entry.startswith(prefix)):
                        found.add(pid)
        return found - {os.getpid()}

    def stop(self, name: str | None = None, *, grace_s: float = 5.0) -> int:
        """End process `name`, or all of this cluster: SIGTERM, after `grace_s` seconds SIGKILL.

        Returns:
            How many processes there were.
        """
        first = self.pids(name)
        terminate(first, signal.SIGTERM)
        _await_end(first, grace_s)
        for _ in range(5):  # a dying parent may still have forked
            left = self.pids(name)
            if not left:
                break
            terminate(left, signal.SIGKILL)
            _await_end(left, 2.0)
        for each in [name] if name else self.recorded():
            (self._records / f"{each}.json").unlink(missing_ok=True)
        return len(first)

    def require(self, process: Process) -> None:
        """Raise with the last line of its log if `process` has ended."""
        if _start_time(process.pid) != process.started or not process.started:
            raise ClusterError(f"{process.name} ended at once: {last_line(Path(process.log))} (see {process.log})")


def last_line(log: Path) -> str:
    """The last line that says something, shortened; programs often put a usage text around it."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()[-60:] if line.strip()]
        telling = [line for line in lines if "rror" in line or "panic" in line or line[0] in "EF"] or lines
        if telling:
            return telling[-1][:300]
    return "it said nothing"


def terminate(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal; whoever is gone already is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _await_end(pids: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_start_time(pid) for pid in pids):
        time.sleep(0.02)


def _start_time(pid: int) -> str | None:
    """When `pid` started, in the system's own spelling; None when it is gone or a zombie."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended would stay a zombie
    if _PROC.is_dir():
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def _all_pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()] if _PROC.is_dir() else []


def _write_json(path: Path, content: object) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.rename(path)
