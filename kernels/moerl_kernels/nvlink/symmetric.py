"""The only importer of torch's symmetric memory, whose interface is private and changes between versions.

Used of it (torch 2.11 to 2.13): empty, rendezvous, get_buffer. Its barriers and signals trap on a time-out, which ends
the CUDA context, so none of them is used.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor

# NVLink multicast stays off: nothing here uses it, and a program that dies with a multicast object can leave the
# switches of a host unusable. Set in the environment, so that child processes inherit it.
NO_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}


def available() -> str | None:
    """None, or why this torch has no symmetric memory."""
    try:
        import torch.distributed._symmetric_memory as symm_mem
    except ImportError as error:
        return f"torch {torch.__version__} has no symmetric memory: {error}"
    missing = [name for name in ("empty", "rendezvous") if not hasattr(symm_mem, name)]
    return f"torch {torch.__version__}'s symmetric memory has no {', '.join(missing)}" if missing else None


def allocate(group: dist.ProcessGroup, device: torch.device, size: int) -> tuple[list[Tensor], object]:
    """`size` bytes on every rank of the group: uint8 views of all of them, own one included, and what keeps them alive.

    A collective. The GPUs must reach each other's memory (NVLink or PCIe peer access).
    """
    for name, value in NO_MULTICAST.items():
        os.environ.setdefault(name, value)
    import torch.distributed._symmetric_memory as symm_mem

    own = symm_mem.empty(size, dtype=torch.uint8, device=device)
    handle = symm_mem.rendezvous(own, group)
    views = [handle.get_buffer(rank, (size,), torch.uint8) for rank in range(dist.get_world_size(group))]
    return views, (own, handle)
