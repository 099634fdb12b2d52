"""Making a backend: by name, checked, and only if every rank makes the same one."""

from __future__ import annotations

import platform
from typing import Any

import torch

from moerl_kernels.backend import EpBackend
from moerl_kernels.backends.allgather import NcclAllGather
from moerl_kernels.backends.alltoall import NcclAllToAll
from moerl_kernels.backends.deepep import DeepEP
from moerl_kernels.backends.reference import Reference
from moerl_kernels.config import EpConfig
from moerl_kernels.errors import EpConfigError, EpUnavailable
from moerl_kernels.group import EpGroup, agree
from moerl_kernels.nvlink import NVLink

_ALL: tuple[type[EpBackend], ...] = (Reference, NcclAllToAll, NcclAllGather, NVLink, DeepEP)
BACKENDS: dict[str, type[EpBackend]] = {cls.name: cls for cls in _ALL}


def create(name: str, config: EpConfig, group: EpGroup | None = None) -> EpBackend:
    """The backend `name` on all ranks of `group` (default: torch.distributed's world, or this process alone).

    A collective. Ranks first compare backend, configuration and versions: a difference is one EpMismatch on all
    of them. Then EpConfigError if the backend cannot do the configuration, EpUnavailable with every reason if it
    cannot run on some rank. Nothing is replaced by something else. After it returns, all ranks are ready.
    """
    group = group or EpGroup.of()
    cls = BACKENDS.get(name)
    facts: dict[str, Any] = {"backend": name, "config": config, "device": group.device.type}
    facts |= {"torch": torch.__version__, "python": platform.python_version()}
    agree(group, facts)
    if cls is None:
        raise EpConfigError(f"there is no backend {name}; there are {', '.join(sorted(BACKENDS))}")
    _able(cls, config, group)
    support = cls.probe()
    reasons = [
        f"rank {rank}: {reason}" for rank, said in enumerate(group.gather_objects(support.reasons)) for reason in said
    ]
    if reasons:
        raise EpUnavailable(f"backend {name} cannot run: " + "; ".join(reasons))
    agree(group, {"versions": sorted(support.versions.items())})
    backend = cls(config, group)
    group.barrier()
    return backend


def _able(cls: type[EpBackend], config: EpConfig, group: EpGroup) -> None:
    config.for_ranks(group.size)
    able = cls.capabilities
    for field, value, can in (
        ("layout", config.layout, able.layouts),
        ("wire", config.wire, able.wires),
        ("size_mode", config.size_mode, able.size_modes),
        ("device", group.device.type, able.devices),
    ):
        if value not in can:
            raise EpConfigError(f"backend {cls.name} has no {field} {value}; it has {', '.join(sorted(can))}")
    if group.size > able.max_ranks:
        raise EpConfigError(f"backend {cls.name} runs on at most {able.max_ranks} ranks, not {group.size}")
