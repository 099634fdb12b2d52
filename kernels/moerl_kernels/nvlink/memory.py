"""One arena per rank, at addresses that every rank's kernels can store to. The kernels see nothing but those addresses.

*symmetric memory*: one GPU per process, over NVLink (several processes on one GPU too, if torch is told to allow it).
*loopback*: threads of one process. *shared memory*: processes on CPUs, for Triton's interpreter.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moerl_kernels.group import EpGroup
from moerl_kernels.nvlink import symmetric
from moerl_kernels.nvlink.loopback import LoopbackGroup


@dataclass(frozen=True, slots=True)
class Memory:
    """views: every rank's arena as uint8, own one included; closing gives back what keeps them alive."""

    kind: str
    views: list[Tensor]
    keep: object
    close: Callable[[], None] = lambda: None

    def table(self) -> Tensor:
        """[R] int64 addresses, on the arena's device."""
        return torch.tensor([view.data_ptr() for view in self.views], dtype=torch.int64, device=self.views[0].device)


def allocate(group: EpGroup, size: int) -> Memory:
    """Zeroed arenas of `size` bytes, ready on all ranks when it returns. A collective."""
    if isinstance(group, LoopbackGroup):
        own = torch.zeros(size, dtype=torch.uint8, device=group.device)
        memory = Memory("loopback", group.gather_objects(own), own)
    elif group.process_group is None:
        own = torch.zeros(size, dtype=torch.uint8, device=group.device)
        memory = Memory("one rank", [own], own)
    elif group.device.type == "cpu":
        memory = _shared(group, size)
    else:
        views, keep = symmetric.allocate(group.process_group, group.device, size)
        memory = Memory("symmetric memory", views, keep)
    memory.views[group.rank].zero_()
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
    group.barrier()
    return memory


def _shared(group: EpGroup, size: int) -> Memory:
    """Files that all processes map; gone from the folder once everybody has."""
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - memory, not a temporary file of a known name
    handle, name = tempfile.mkstemp(prefix="moerl-ep-", dir=folder)
    os.ftruncate(handle, size)
    os.close(handle)
    maps, views = [], []
    for path in group.gather_objects(name):
        with Path(path).open("r+b") as file:
            maps.append(mmap.mmap(file.fileno(), size))
        views.append(torch.frombuffer(maps[-1], dtype=torch.uint8))
    group.barrier()
    Path(name).unlink()
    return Memory("shared memory", views, maps)
