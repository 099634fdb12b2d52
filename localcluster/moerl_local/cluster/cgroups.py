"""The cgroup under which the real node keeps its pods, in every hierarchy of the machine.

cgroup v1 is what this was tried on; v2 follows the kernel's documentation and is untested.
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from moerl_local.cluster.processes import terminate

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS_V2 = ("cpuset", "cpu", "io", "memory", "pids", "hugetlb")


def is_v2() -> bool:
    """Whether the machine has the unified hierarchy only."""
    return (_ROOT / "cgroup.controllers").exists()


def make(name: str) -> None:
    """Make cgroup /`name` where kubelet will look for it."""
    for root in _hierarchies():
        folder = root / name
        if is_v2():
            offered = (root / "cgroup.controllers").read_text().split()
            for controller in (each for each in _CONTROLLERS_V2 if each in offered):
                with contextlib.suppress(OSError):  # some cannot be delegated, kubelet says what it misses
                    (root / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            # In v1 an empty cpuset takes no process, and children start empty.
            if not is_v2() and (root / file).exists() and not (folder / file).read_text().strip():
                (folder / file).write_text((root / file).read_text())


def kill(name: str, *, timeout_s: float = 10.0) -> int:
    """Kill every process under cgroup /`name`.

    Returns:
        How many there were.
    """
    first = _pids(name)
    deadline = time.monotonic() + timeout_s
    pids = first
    while pids and time.monotonic() < deadline:
        terminate(pids, signal.SIGKILL)
        time.sleep(0.05)
        pids = _pids(name)
    return len(first)


def remove(name: str) -> None:
    """Remove cgroup /`name` and everything under it; its processes must be gone."""
    for root in _hierarchies():
        for _ in range(20):  # a cgroup stays busy for a moment after its last process
            if not (root / name).is_dir():
                break
            for folder in sorted(_tree(root / name), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            time.sleep(0.02)


def left(name: str) -> list[Path]:
    """The folders of cgroup /`name` that exist."""
    return [root / name for root in _hierarchies() if (root / name).is_dir()]


def _pids(name: str) -> set[int]:
    found: set[int] = set()
    for root in _hierarchies():
        for folder in _tree(root / name) if (root / name).is_dir() else ():
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return found


def _tree(folder: Path) -> list[Path]:
    return [folder, *(path for path in folder.rglob("*") if path.is_dir())]


def _hierarchies() -> list[Path]:
    """Where cgroup hierarchies are mounted; two controllers may share one under two names."""
    found: dict[tuple[int, int], Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        path = Path(target)
        if kind in {"cgroup", "cgroup2"} and (path == _ROOT or path.parent == _ROOT):
            with contextlib.suppress(OSError):
                found.setdefault((path.stat().st_dev, path.stat().st_ino), path)
    return list(found.values())
