"""The real node (being written)."""

from __future__ import annotations

from pathlib import Path

from moerl_local.cluster.kubectl import Kubectl
from moerl_local.cluster.processes import Processes
from moerl_local.cluster.settings import Settings

NAME = "local"


def runs(processes: Processes) -> bool:
    return processes.get("kubelet") is not None


def socket(name: str) -> Path:
    return Path("/run") / f"moerl-{name}" / "containerd.sock"


def start(settings: Settings, processes: Processes, bin_dir: Path, admin: Kubectl) -> None:
    raise NotImplementedError


def stop(folder: Path, processes: Processes) -> int:
    return 0


def clean(name: str, folder: Path) -> None:
    return None
