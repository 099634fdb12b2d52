"""Whatever became of the launcher, a cluster's processes are found and ended, and nobody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.processes import MARK, Processes, last_line

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAF = [sys.executable, "-c", "import signal, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(600)"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.stop(grace_s=0.2)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_start_is_idempotent_and_stop_ends(processes: Processes) -> None:
    first = processes.start("a", SLEEP)
    assert processes.start("a", SLEEP) == first
    assert processes.recorded() == ["a"]
    assert processes.stop() == 1
    assert processes.get("a") is None
    assert processes.recorded() == []


@linux
def test_deaf_process_is_killed(processes: Processes, tmp_path: Path) -> None:
    process = processes.start("a", DEAF)
    while "deaf" not in (tmp_path / "logs" / "a.log").read_text():
        time.sleep(0.05)
    processes.stop(grace_s=0.3)
    assert not alive(process.pid)


@linux
def test_orphan_without_a_record_is_found_with_its_children(processes: Processes, tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).wait()"
    process = processes.start("a", [sys.executable, "-c", script])
    while len(processes.pids("a")) < 2:
        time.sleep(0.05)
    (tmp_path / "run" / "a.json").unlink()  # as if the launcher had been killed between fork and record
    pids = Processes(tmp_path).pids()
    assert process.pid in pids
    assert Processes(tmp_path).stop(grace_s=1) == 2
    assert not any(alive(pid) for pid in pids)


@linux
def test_other_clusters_are_left_alone(processes: Processes, tmp_path: Path) -> None:
    other = subprocess.Popen(SLEEP, env={**os.environ, MARK: f"{tmp_path}2:a"})
    try:
        processes.start("a", SLEEP)
        processes.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_pid_of_somebody_else_is_not_taken_for_ours(processes: Processes, tmp_path: Path) -> None:
    process = processes.start("a", SLEEP)
    record = tmp_path / "run" / "a.json"
    stale = {**json.loads(record.read_text()), "started": "1"}
    record.write_text(json.dumps(stale))
    assert processes.get("a") is None
    os.kill(process.pid, signal.SIGKILL)


def test_ended_process_is_explained_by_its_log(processes: Processes, tmp_path: Path) -> None:
    process = processes.start("a", ["/bin/sh", "-c", "echo Error: port taken; echo usage; exit 1"])
    while processes.get("a"):
        time.sleep(0.02)
    with pytest.raises(ClusterError, match="a ended at once: Error: port taken"):
        processes.require(process)
    assert last_line(tmp_path / "none") == "it said nothing"
