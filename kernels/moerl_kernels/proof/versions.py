"""Versions of everything between two GPUs, and one hash of them: two runs of one fingerprint had one data path.

Each is read where it is authoritative (module in sysfs, file on disk, package metadata), all below `root`, so that a
test gives a fake tree. What is absent is None and part of the hash: a driver that went away is a change too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from moerl_kernels.proof.counters import efa_devices
from moerl_kernels.proof.evidence import LogFacts

# Prefixes of variables that NCCL, its plugin, libfabric and DeepEP read.
_PREFIXES = ("NCCL_", "OFI_NCCL_", "FI_", "EP_", "RDMAV_", "NVSHMEM_", "TORCH_NCCL_", "TORCH_SYMM_MEM_")
# They change what is printed, or differ from pod to pod, and move no byte another way.
_NOT_OF_THE_PATH = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "EP_BUFFER_DEBUG", "EP_JIT_CACHE_DIR")
# The prefixes are short: whatever somebody named so is no setting of the path, and no report shows it.
_SECRET = re.compile(r"_(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_NVIDIA = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_PACKAGES = {"torch": ("torch",), "deep_ep": ("deep_ep", "deep-ep"), "triton": ("triton",)}
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")

Versions = dict[str, str | None]


def read(root: Path = Path("/"), log: LogFacts | None = None) -> Versions:
    """driver, cuda, nccl, aws_ofi_nccl, libfabric, efa, efa_installer, gdrcopy, deep_ep, torch, triton, gpu."""
    log = log or LogFacts()
    installed = _installed(root)
    out: Versions = {
        "driver": _first(_NVIDIA, root / "proc/driver/nvidia/version"),
        "cuda": _cuda(root),
        # NCCL's own banner knows which library was loaded; the package only which one was installed.
        "nccl": log.nccl_version.partition("+")[0] or _package(_NCCL_PACKAGES),
        "aws_ofi_nccl": log.ofi_version or installed.get("aws-ofi-nccl") or installed.get("libnccl-ofi"),
        "libfabric": log.libfabric_version or installed.get("libfabric") or installed.get("libfabric-aws"),
        "efa": _text(root / "sys/module/efa/version"),
        "efa_installer": _first(re.compile(r"EFA installer version:\s*(\S+)"), root / _INSTALLED),
        "gdrcopy": _text(root / "sys/module/gdrdrv/version"),
        "gpu": gpu(root),
        "efa_adapters": str(len(efa_devices(root))),
    }
    return out | {name: _package(packages) for name, packages in _PACKAGES.items()}


def fingerprint(versions: Mapping[str, str | None], environment: Mapping[str, str]) -> str:
    """16 hex digits over the versions and the variables of the data path, in whatever order they come."""
    content = {"versions": dict(versions), "environment": path_environment(environment)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def path_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide how bytes travel, and no other; none whose name says that it is a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) and name not in _NOT_OF_THE_PATH and not _SECRET.search(name)
    }


def gpu(root: Path = Path("/")) -> str | None:
    """`<count> x <model>` of the GPUs that the driver shows, None without any."""
    models = [
        match.group(1).strip()
        for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
        if (match := re.search(r"Model:\s*(.+)", _text(path) or ""))
    ]
    return f"{len(models)} x {', '.join(sorted(set(models)))}" if models else None


_INSTALLED = Path("opt/amazon/efa_installed_packages")


def _installed(root: Path) -> dict[str, str]:
    """Packages of the EFA installer: lines such as `libfabric-aws-2.6.0amzn1.0-1.amzn2023.x86_64`."""
    text = _text(root / _INSTALLED) or ""
    found = re.findall(r"^\s*([a-z][a-z-]*?)[-_ =:]+v?(\d[\w.+~]*)", text, re.MULTILINE)
    return dict(found)


def _cuda(root: Path) -> str | None:
    try:
        document = json.loads((root / "usr/local/cuda/version.json").read_text())
        return str(document["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _package(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _first(pattern: re.Pattern[str], path: Path) -> str | None:
    match = pattern.search(_text(path) or "")
    return match.group(1) if match else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
