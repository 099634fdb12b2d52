"""The process group as the backends use it, and the agreement that all ranks reach before they start.

A rank that raises while the others wait in a collective hangs them all. So everything that can differ or be
wrong is first exchanged, and then either all ranks go on or all raise the same error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moerl_kernels.errors import EpMismatch


@dataclass(frozen=True, slots=True)
class EpGroup:
    """The ranks that share the experts. `process_group` None: one rank, no communication at all."""

    rank: int
    size: int
    device: torch.device
    process_group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, process_group: dist.ProcessGroup | None = None, *, device: torch.device | str = "cpu") -> EpGroup:
        """The given group, or the default one if torch.distributed is initialised, else a single rank."""
        device = torch.device(device)
        if process_group is None and not dist.is_initialized():
            return cls(0, 1, device)
        group = process_group or dist.group.WORLD
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        return cls(rank, size, device, group if size > 1 else None)

    def gather_objects(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order. A collective."""
        if self.process_group is None:
            return [value]
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, value, group=self.process_group)
        return out

    def gather(self, value: Tensor) -> Tensor:
        """Equal-shaped tensors of all ranks, stacked: [R, *value.shape]. A collective."""
        if self.process_group is None:
            return value.unsqueeze(0)
        out = torch.empty((self.size, *value.shape), dtype=value.dtype, device=value.device)
        if value.numel() == 0:
            return out
        dist.all_gather_into_tensor(out.view(-1), value.contiguous().view(-1), group=self.process_group)
        return out

    def exchange(
        self,
        value: Tensor,
        *,
        send: list[int] | None = None,
        receive: list[int] | None = None,
        async_op: bool = False,
    ) -> tuple[Tensor, dist.Work | None]:
        """All-to-all along dimension 0; equal splits unless row counts per rank are given."""
        if self.process_group is None:
            return value, None
        rows = value.shape[0] if receive is None else sum(receive)
        out = torch.empty((rows, *value.shape[1:]), dtype=value.dtype, device=value.device)
        # fp8 is bytes to every collective library.
        as_bytes = value.dtype == torch.float8_e4m3fn
        source, target = (value.view(torch.uint8), out.view(torch.uint8)) if as_bytes else (value, out)
        work = dist.all_to_all_single(
            target, source.contiguous(), receive, send, group=self.process_group, async_op=async_op
        )
        return out, work

    def any(self, flag: Tensor) -> Tensor:
        """Elementwise maximum of an int64 tensor over the ranks. A collective."""
        if self.process_group is None:
            return flag
        out = flag.clone()
        dist.all_reduce(out, dist.ReduceOp.MAX, group=self.process_group)
        return out

    def barrier(self) -> None:
        """All ranks are here."""
        if self.process_group is not None:
            dist.barrier(group=self.process_group)


def agree(group: EpGroup, facts: Mapping[str, Any]) -> None:
    """Raise one EpMismatch on all ranks unless `facts` are equal everywhere. A collective."""
    everyone = group.gather_objects(dict(facts))
    lines = []
    for name in facts:
        values: dict[str, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            values.setdefault(str(theirs.get(name)), []).append(rank)
        if len(values) > 1:
            lines.append(f"{name}: " + "; ".join(f"{value} on ranks {ranks}" for value, ranks in values.items()))
    if lines:
        raise EpMismatch("ranks disagree about " + " | ".join(lines))
