"""A cluster comes up, comes back, and goes without a trace, however rudely its launcher was ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster import leftovers, network, settings
from moerl_local.cluster.handle import Cluster
from moerl_local.cluster.processes import Processes
from moerl_local.paths import state_dir
from support.fake_nodes import eventually
from support.local import node_obstacle

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.node,
    pytest.mark.skipif(node_obstacle() is not None, reason=str(node_obstacle())),
]

PAUSE = "moerl.dev/pause:local"


@dataclass(frozen=True)
class Box:
    """A cluster name of one test's own, with the command line to it."""

    name: str

    def moerl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=120)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "moerl_local.cluster", *words, "--name", self.name]

    @property
    def folder(self) -> Path:
        return state_dir() / self.name

    def left(self) -> list[str]:
        """What of this cluster is on the machine; needs its settings, so before `--purge`."""
        found = settings.load(self.name)
        assert found is not None
        return leftovers.find(self.folder, found.network)

    def pids(self) -> dict[str, int]:
        processes = Processes(self.folder)
        found = {name: processes.get(name) for name in processes.recorded()}
        return {name: process.pid for name, process in found.items() if process}


@pytest.fixture
def box() -> Iterator[Box]:
    made = Box(f"t{uuid.uuid4().hex[:8]}")
    yield made
    made.moerl("down", "--purge")
    assert not made.folder.exists()


def test_up_again_starts_what_died_and_down_keeps_the_data(box: Box) -> None:
    first = box.moerl("up", "--no-aws")
    assert first.returncode == 0, first.stdout + first.stderr
    before = box.pids()
    assert {"etcd", "kube-apiserver", "kubelet", "containerd", "coredns", "kwok"} <= set(before)
    assert box.moerl("up", "--no-aws").returncode == 0
    assert box.pids() == before

    for name in ("kube-scheduler", "kubelet"):
        os.kill(before[name], signal.SIGKILL)
    assert box.moerl("up", "--no-aws").returncode == 0
    assert {name for name, pid in box.pids().items() if before[name] != pid} == {"kube-scheduler", "kubelet"}

    run_pod(Cluster.load(box.name), "p")
    assert any(line.startswith("mount") for line in box.left())
    assert any(line.startswith("cgroup") for line in box.left())
    down = box.moerl("down")
    assert down.returncode == 0, down.stderr
    assert box.left() == []

    began = time.monotonic()
    assert box.moerl("up", "--no-aws").returncode == 0
    assert time.monotonic() - began < 30
    cluster = Cluster.load(box.name)
    assert cluster.kubectl("get", "pod", "p", "-o", "name").strip() == "pod/p"
    eventually(lambda: restarts(cluster, "p") >= 1, within_s=60)  # its sandbox went with `down`


@pytest.mark.parametrize("moment", ["kube-apiserver", "kubelet"])
def test_kill_in_the_middle_then_down_leaves_nothing(box: Box, moment: str) -> None:
    with subprocess.Popen(box.command("up", "--no-aws"), stdout=subprocess.DEVNULL) as launcher:
        eventually(lambda: moment in box.pids() or launcher.poll() is not None, within_s=60)
        launcher.send_signal(signal.SIGKILL)
    down = box.moerl("down")
    assert down.returncode == 0, down.stderr
    assert box.left() == []


def test_kill_of_every_process_then_down_leaves_nothing(box: Box) -> None:
    assert box.moerl("up", "--no-aws").returncode == 0
    run_pod(Cluster.load(box.name), "p")
    for pid in Processes(box.folder).pids():
        os.kill(pid, signal.SIGKILL)
    status = box.moerl("status")
    assert status.returncode == 1
    assert "ended" in status.stdout
    down = box.moerl("down")
    assert down.returncode == 0, down.stderr
    assert box.left() == []


def test_reset_forgets_objects_and_keeps_images(box: Box) -> None:
    assert box.moerl("up", "--no-aws").returncode == 0
    Cluster.load(box.name).kubectl("create", "namespace", "gone")
    images = (box.folder / "containerd").stat().st_ino
    assert box.moerl("reset", "--no-aws").returncode == 0
    cluster = Cluster.load(box.name)
    assert cluster.kubectl("get", "namespace", "gone", "--ignore-not-found") == ""
    assert (box.folder / "containerd").stat().st_ino == images


def run_pod(cluster: Cluster, name: str) -> dict[str, Any]:
    """A pod of the pause image on the real node, running."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeName": cluster.node_name, "containers": [{"name": "main", "image": PAUSE}]},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    phase = ("get", "pod", name, "-o", "jsonpath={.status.phase}")
    eventually(lambda: cluster.kubectl(*phase) == "Running", within_s=60)
    return pod


def restarts(cluster: Cluster, pod: str) -> int:
    """How often its container was started again."""
    said = cluster.kubectl("get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
    return int(said or 0)


def test_kubelet_port_taken_is_said_before_anything_is_made(box: Box) -> None:
    own = settings.load_or_choose(box.name).network
    network.make_links(own)  # as if that program listened on all addresses, which it may not beside other clusters
    with socket.socket() as other:
        other.bind((own.address, 10250))
        other.listen()
        done = box.moerl("up", "--no-aws")
    assert done.returncode == 1
    assert "port 10250, which kubelet needs" in done.stderr
    assert box.left() == []
