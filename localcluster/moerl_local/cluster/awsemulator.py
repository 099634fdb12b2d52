"""Runs the AWS emulator beside the cluster, as one of its processes."""

from __future__ import annotations

import importlib.util
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from moerl_local.cluster.controlplane import Files
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.processes import Process, Processes, last_line
from moerl_local.cluster.settings import Settings

NAME = "aws"
_START_S = 60.0  # importing moto takes seconds on a cold disk


def available() -> bool:
    """Whether the emulator is part of this installation."""
    return importlib.util.find_spec("moerl_local.aws.__main__") is not None if _has_package() else False


def endpoint(settings: Settings) -> str:
    """The emulator's URL, for host and pods alike."""
    return f"http://{settings.address}:{settings.port(NAME, prefer=4566)}"


def start(settings: Settings, processes: Processes, *, node_name: str | None, time_scale: float) -> Process:
    """Start it unless it runs; does not wait (see `await_ready`)."""
    state = settings.folder / "aws"
    state.mkdir(parents=True, exist_ok=True)
    endpoint(settings)  # chooses the port
    command: list[str | Path] = [sys.executable, "-m", "moerl_local.aws", "--bind", settings.address]
    command += ["--port", str(settings.ports[NAME]), "--kubeconfig", Files(settings.folder).kubeconfig("aws")]
    command += ["--cluster-name", "moerl-local", "--state-dir", state]
    command += ["--time-scale", f"{time_scale:g}"] if time_scale else ["--manual-clock"]
    if node_name:
        command += ["--local-node", node_name]
    return processes.start(NAME, command)


def await_ready(settings: Settings, processes: Processes, process: Process) -> str:
    """Wait until /healthz answers.

    Returns:
        The endpoint's URL.
    """
    url = endpoint(settings)
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=2):  # noqa: S310 (an address of this machine)
                return url
        except (urllib.error.URLError, OSError):
            processes.require(process)
            if time.monotonic() > deadline:
                said = last_line(Path(process.log))
                raise ClusterError(
                    f"the AWS emulator is not ready after {_START_S:.0f} s: {said} (see {process.log})"
                ) from None
            time.sleep(0.2)


def _has_package() -> bool:
    return importlib.util.find_spec("moerl_local.aws") is not None
