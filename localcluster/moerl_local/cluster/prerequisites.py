"""Looks for everything `up` needs before anything is made, and says in one line what is missing and how to mend it."""

from __future__ import annotations

import shutil
from pathlib import Path

from moerl_local.cluster import build
from moerl_local.cluster.errors import ClusterError
from moerl_local.paths import state_dir

CNI_BIN_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CNI_PLUGINS = ("bridge", "host-local", "loopback")
_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
}
_MIN_FREE_GIB = 2


def check(*, with_node: bool) -> None:
    """Check programs, disk and Go.

    Raises:
        ClusterError: names what is missing and the remedy.
    """
    if with_node:
        _check_node()
    build.bin_dir()  # is Go there, and new enough?
    state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    free = shutil.disk_usage(state_dir()).free / (1 << 30)
    if free < _MIN_FREE_GIB:
        raise ClusterError(
            f"disk nearly full: {free:.1f} GiB free at {state_dir()}, the cluster needs {_MIN_FREE_GIB} GiB; "
            "free some or set MOERL_STATE to another disk"
        )


def cni_bin_dir() -> Path | None:
    """The folder with the CNI plugins."""
    return next((path for path in CNI_BIN_DIRS if all((path / name).exists() for name in _CNI_PLUGINS)), None)


def _check_node() -> None:
    missing = {package for program, package in _PACKAGES.items() if shutil.which(program) is None}
    if cni_bin_dir() is None:
        missing.add("containernetworking-plugins")
    if missing:
        names = " ".join(sorted(missing))
        raise ClusterError(
            f"the real node needs {names}: run `apt-get install {names}`, "
            "or `moerl cluster up --no-node` for fake nodes only"
        )
