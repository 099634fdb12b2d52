"""Byte counters of the kernel and of the GPUs. They count what was sent, whatever any program says it sent.

EFA: <root>/sys/class/infiniband/<device>/ports/<port>/hw_counters (drivers/infiniband/hw/efa/efa_verbs.c): cumulative
since the driver was loaded, over all processes of the node. RDMA writes may leave `tx_bytes` almost still on some
platforms, so the largest of the send counters is what counts. Interfaces: <root>/sys/class/net/<name>/statistics, of
the reader's own network namespace, which is the pod's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moerl_kernels.proof.evidence import Traffic

# Bytes that this node sent; rdma_read_resp_bytes are sent too, on a peer's request.
EFA_SENT = ("tx_bytes", "send_bytes", "rdma_write_bytes", "rdma_read_resp_bytes")
EFA_KEPT = (*EFA_SENT, "rx_bytes", "rdma_write_recv_bytes", "rx_drops", "rdma_write_wr_err", "retrans_bytes")
NVLINK_SECONDS = 10.0
_NVLINK_TX = re.compile(r"Data Tx:\s*(\d+)\s*KiB")


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading. None: nothing there to read."""

    efa: Mapping[str, int] | None = None
    nvlink: int | None = None
    network: Mapping[str, int] | None = None


def read(root: Path = Path("/"), *, nvlink_text: str | None = None) -> Counters:
    """All counters now. nvlink_text: output of `nvidia-smi nvlink -gt d`, see nvlink_output."""
    return Counters(efa(root), None if nvlink_text is None else nvlink(nvlink_text), interfaces(root))


def rose(before: Counters, after: Counters) -> Traffic:
    """What was counted between two readings; a counter that fell (a driver reload) counts as not readable."""
    out: dict[str, int] | None = None
    if before.efa is not None and after.efa is not None:
        # A counter of the second reading alone would count what was sent since the driver was loaded.
        out = {name: after.efa[name] - was for name, was in before.efa.items() if name in after.efa}
        if min(out.values(), default=0) < 0:
            out = None
    network: int | None = None
    loopback: int | None = None
    if before.network is not None and after.network is not None:
        # An interface of the second reading alone (a fresh veth) would count bytes of before the exchange.
        both = {name: after.network[name] - was for name, was in before.network.items() if name in after.network}
        loopback = both.pop("lo", None)
        network = sum(value for value in both.values() if value >= 0)
    nvlink_bytes = None
    if before.nvlink is not None and after.nvlink is not None and after.nvlink >= before.nvlink:
        nvlink_bytes = after.nvlink - before.nvlink
    return Traffic(out, nvlink_bytes, network, loopback)


def efa(root: Path = Path("/")) -> dict[str, int] | None:
    """Counters summed over the node's EFA adapters, None without any.

    Only adapters of the efa driver: on P6 nodes NVLink's own `ibp*` devices are in the same folder
    (aws hyperpod-cli PR #282 counted those as EFA).
    """
    found: dict[str, int] | None = None
    for device in sorted((root / "sys/class/infiniband").glob("*")):
        if not _is_efa(device):
            continue
        found = found if found is not None else {}
        for folder in sorted(device.glob("ports/*/hw_counters")):
            for name in EFA_KEPT:
                value = _number(folder / name)
                if value is not None:
                    found[name] = found.get(name, 0) + value
    return found


def efa_devices(root: Path = Path("/")) -> list[str]:
    """Names of the node's EFA adapters."""
    return sorted(d.name for d in (root / "sys/class/infiniband").glob("*") if _is_efa(d))


def interfaces(root: Path = Path("/")) -> dict[str, int] | None:
    """Bytes sent by each network interface of this network namespace."""
    folder = root / "sys/class/net"
    found = {path.name: _number(path / "statistics/tx_bytes") for path in sorted(folder.glob("*"))}
    known = {name: value for name, value in found.items() if value is not None}
    return known or None


def nvlink(text: str) -> int | None:
    """Bytes sent over NVLink in the words of `nvidia-smi nvlink -gt d`, None if it tells no link's."""
    found = _NVLINK_TX.findall(text)
    return 1024 * sum(map(int, found)) if found else None


def nvlink_output() -> str | None:
    """Ask nvidia-smi, which the NVIDIA container toolkit puts into GPU pods; None if it is not there or too slow."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "nvlink", "-gt", "d"], capture_output=True, text=True, timeout=NVLINK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _is_efa(device: Path) -> bool:
    driver = device / "device/driver"
    if driver.exists():
        return driver.resolve().name == "efa"
    # Without the driver's link (some container runtimes mask it) the name tells: EFA gets `rdmap*` or `efa_*`.
    return device.name.startswith(("rdmap", "efa"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
