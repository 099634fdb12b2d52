"""A node's /sys, /proc and /opt as files below a folder, for everything that reads them with a root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class FakeNode:
    """Writes the files that the transport proof reads."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str | bytes) -> Path:
        """One file, with its folders."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def adapter(self, name: str, counters: Mapping[str, int], *, driver: str | None = None) -> None:
        """An InfiniBand-class device with hardware counters; `driver` as sysfs links it, None: no link."""
        base = f"sys/class/infiniband/{name}"
        for counter, value in counters.items():
            self.write(f"{base}/ports/1/hw_counters/{counter}", f"{value}\n")
        if driver is not None:
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            link = self.root / base / "device/driver"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    def interface(self, name: str, sent: int) -> None:
        """A network interface that has sent so many bytes."""
        self.write(f"sys/class/net/{name}/statistics/tx_bytes", f"{sent}\n")

    def p5en(self) -> None:
        """A node of the reference stack (awsome-distributed-ai, deepep-v2-benchmark)."""
        self.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n",
        )
        for index in range(8):
            self.write(f"proc/driver/nvidia/gpus/0000:{index:02x}:00.0/information", "Model: \t\t NVIDIA H200\n")
        self.write("sys/module/efa/version", "3.3.0g\n")
        self.write("sys/module/gdrdrv/version", "2.5.2\n")
        self.write("usr/local/cuda/version.json", '{"cuda": {"name": "CUDA SDK", "version": "13.1.2"}}')
        self.write(
            "opt/amazon/efa_installed_packages",
            "# EFA installer version: 1.50.0\n# Packages:\nlibfabric-aws-2.6.0amzn1.0-1.amzn2023.x86_64\n"
            "libnccl-ofi-1.21.1-1.amzn2023.x86_64\nrdma-core-64.0amzn0-1.x86_64\n",
        )
