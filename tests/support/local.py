"""Starts, checks and ends the cluster that the e2e tests use.

Tests create and delete freely, so they must never reach a cluster that somebody cares for: the only one
they accept was made by this project on this machine, under a name of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from moerl_local.cluster.handle import Cluster

# Each process of a parallel run has a cluster of its own: testgw0 and testgw1.
NAME = os.environ.get("MOERL_TEST_CLUSTER", "test") + os.environ.get("PYTEST_XDIST_WORKER", "")
MOERL = str(Path(sys.executable).with_name("moerl"))


def node_obstacle() -> str | None:
    """Why this machine cannot run the real node, or None."""
    if sys.platform != "linux":
        return "the real node needs Linux"
    if os.geteuid() != 0:
        return "the real node needs root"
    missing = [
        name for name in ("containerd", "runc") if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
    ]
    return f"the real node needs {', '.join(missing)}" if missing else None


def is_this_machine(server: str) -> bool:
    """Whether the host of URL `server` is an address that a socket of this machine can bind."""
    host = urlsplit(server).hostname or ""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, 0)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind((address[0], 0))
    except OSError:
        return False
    return True


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """The tests' cluster: reused when it runs, else started, and ended afterwards unless MOERL_KEEP_CLUSTER is set.

    Raises:
        RuntimeError: the cluster did not start, or its API server is not on this machine.
    """
    command = [MOERL, "cluster", "up", "--name", NAME]
    if node_obstacle():
        command.append("--no-node")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command[1:])}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    try:
        cluster = Cluster.load(NAME)
        if not is_this_machine(cluster.server):
            raise RuntimeError(f"cluster {NAME} is at {cluster.server}, which is not this machine: tests refuse it")
        yield cluster
    finally:
        if not os.environ.get("MOERL_KEEP_CLUSTER"):
            subprocess.run(
                [MOERL, "cluster", "down", "--name", NAME], stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
