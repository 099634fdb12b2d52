"""Removes what a real node leaves outside its processes: mounts, cgroups, sockets, files in common places."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from moerl_local.cluster import cgroups, runtime, sysctls
from moerl_local.cluster.network import Network

_SHIM_SOCKETS = Path("/run/containerd/s")
_CNI_CACHE = Path("/var/lib/cni/results")
_CONTAINER_LOGS = Path("/var/log/containers")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def sweep(folder: Path, network: Network) -> None:
    """Remove it all; the processes must be gone."""
    run = runtime.run_dir(network)
    sockets = _shim_sockets(run)
    for _ in range(3):  # an unmount can uncover another
        for target in mounts(folder, run):
            subprocess.run(["umount", target], capture_output=True, check=False)
    for target in mounts(folder, run):
        subprocess.run(["umount", "--lazy", target], capture_output=True, check=False)
    if mounts(folder, run):
        return  # deleting below a mount would delete what is mounted
    cgroups.remove(network.bridge)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    shutil.rmtree(run, ignore_errors=True)
    sysctls.restore(network)
    shutil.rmtree(folder / "cni", ignore_errors=True)
    for path in _CNI_CACHE.glob(f"{network.bridge}-*"):
        path.unlink(missing_ok=True)
    for path in _CONTAINER_LOGS.glob("*"):
        if path.is_symlink() and str(path.readlink()).startswith(f"{folder}/"):
            path.unlink()
    _remove_common_folders()


def mounts(folder: Path, run: Path) -> list[str]:
    """Mount points of the cluster, innermost first."""
    inside = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        target = line.split()[4].encode().decode("unicode_escape")  # a space is written \040
        if any(target == str(parent) or target.startswith(f"{parent}/") for parent in (folder, run)):
            inside.append(target)
    return sorted(inside, key=len, reverse=True)


def _shim_sockets(run: Path) -> list[Path]:
    """The sockets of this cluster's shims, which lie in a folder that all containerds share."""
    found = []
    for path in (run / "containerd").glob("io.containerd.runtime.v2.task/*/*/address"):
        with contextlib.suppress(OSError):
            socket = Path(path.read_text().strip().removeprefix("unix://"))
            if socket.parent == _SHIM_SOCKETS:
                found.append(socket)
    return found


def _remove_common_folders() -> None:
    """Folders at fixed places that kubelet and the runtime make, as far as nobody else uses them."""
    plugins = {path.name for path in _DEVICE_PLUGINS.glob("*")} if _DEVICE_PLUGINS.is_dir() else set()
    if plugins <= {"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"}:
        shutil.rmtree(_DEVICE_PLUGINS, ignore_errors=True)
    for folder in (
        _DEVICE_PLUGINS.parent,
        _CNI_CACHE,
        _CNI_CACHE.parent,
        _CONTAINER_LOGS,
        _SHIM_SOCKETS,
        _SHIM_SOCKETS.parent,
    ):
        with contextlib.suppress(OSError):  # not empty, or not there
            folder.rmdir()
