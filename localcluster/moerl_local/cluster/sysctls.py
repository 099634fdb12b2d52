"""Remembers the kernel settings that kubelet changes, and puts them back when the last real node goes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from moerl_local.cluster.network import Network

# Those of kubelet's container manager (setupKernelTunables); memory overcommit above all is felt by everybody else.
_NAMES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_SAVED = Path("/run/moerl-sysctls.json")  # one for all clusters, gone with a reboot as the settings are
_PROC = Path("/proc/sys")


def save() -> None:
    """Remember the settings, unless an earlier cluster has."""
    if not _SAVED.exists():
        present = [name for name in _NAMES if (_PROC / name).exists()]
        _SAVED.write_text(json.dumps({name: (_PROC / name).read_text().strip() for name in present}))


def restore(own: Network) -> None:
    """Put the settings back, unless another cluster than `own` may still have a kubelet."""
    others = [path for path in _SAVED.parent.glob("moerl[0-9]*") if path.name != own.bridge]
    if others or not _SAVED.exists():
        return
    for name, value in json.loads(_SAVED.read_text()).items():
        with contextlib.suppress(OSError):
            (_PROC / name).write_text(value)
    _SAVED.unlink()
