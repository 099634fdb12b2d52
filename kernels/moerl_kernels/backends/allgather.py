"""NCCLAllGather: every rank gets all rows and picks its own; sums go back as one row per token and rank.

At two ranks with top-8 of 256 an all-gather moves 0.4 % more than a perfect dispatch, so it is the baseline to
beat there. Runs over any process group (gloo on CPU).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moerl_kernels.backend import EpBackend, Handle, Pending
from moerl_kernels.config import COLLECTIVE
from moerl_kernels.routing import arrange, local_expert, owners
from moerl_kernels.rows import sum_slots


@dataclass(frozen=True, slots=True)
class _Extra:
    block: int  # rows of one rank in the gathered tensors; ranks with fewer tokens pad
    slots: Tensor  # [R * block, k] int64: received row of each slot, `rows` where it is not ours
    source: Tensor  # [rows] int64: gathered token of each received row
    slot: Tensor  # [rows] int64: flat slot of each received row (expert-major)
    local_idx: Tensor  # [R * block, k] int64


class NcclAllGather(EpBackend):
    """All-gather and local expand; partial sums return by an equal all-to-all and are added in rank order."""

    name = "NCCLAllGather"
    capabilities = COLLECTIVE

    def _route(self, topk_idx: Tensor, headers: list[list[int]] | None) -> Handle:
        config, group = self.config, self.group
        block = config.max_tokens_per_rank if headers is None else max(header[0] for header in headers)
        everyone = group.gather(_padded(topk_idx, block, -1)).flatten(0, 1)
        local = local_expert(everyone, rank=group.rank, experts_per_rank=self.experts_per_rank)
        if config.layout == "expert_major":
            candidates, groups = local.flatten(), self.experts_per_rank
        else:
            mine = (local >= 0).any(-1)
            candidates = torch.where(mine, torch.arange(group.size * block, device=mine.device) // max(block, 1), -1)
            groups = group.size
        rows = config.rows(group.size) if headers is None else self._exact_rows(headers)
        plan = arrange(candidates, groups=groups, alignment=config.alignment, rows=rows)
        if headers is None:
            self._note_overflow(plan.total, rows)
        # One row past the end takes what is not ours; gaps point at row 0, which is as good as anything.
        back = torch.zeros(rows + 1, dtype=torch.int64, device=topk_idx.device)
        back.scatter_(0, plan.position, torch.arange(candidates.numel(), device=back.device))
        slot = back[:rows]
        if config.layout == "expert_major":
            source, slots = slot // config.top_k, plan.position.view(-1, config.top_k)
        else:
            source = slot
            slots = torch.where(local >= 0, plan.position.unsqueeze(-1), rows)
        return Handle(topk_idx, plan, rows, _Extra(block, slots, source, slot, local))

    def _exact_rows(self, headers: list[list[int]]) -> int:
        config, rank, experts = self.config, self.group.rank, self.config.num_experts
        if config.layout == "compact":
            return sum(header[2 + experts + rank] for header in headers)
        first = 2 + rank * self.experts_per_rank
        counts = [sum(header[first + e] for header in headers) for e in range(self.experts_per_rank)]
        return sum(-(-count // config.alignment) * config.alignment for count in counts)

    def _push(self, x: Tensor, handle: Handle) -> Pending:
        extra: _Extra = handle.extra
        as_bytes = x.dtype == torch.float8_e4m3fn
        gathered = self.group.gather(_padded(x.view(torch.uint8) if as_bytes else x, extra.block, 0)).flatten(0, 1)

        def finish() -> Tensor:
            if gathered.shape[0] == 0:
                return x.new_empty((handle.rows, *x.shape[1:]))
            rows = gathered.index_select(0, extra.source)
            return rows.view(x.dtype) if as_bytes else rows

        return Pending(finish)

    def _pull(self, rows: Tensor, handle: Handle, weights: Tensor | None = None) -> Pending:
        extra: _Extra = handle.extra
        slots = _first_per_row(extra.slots) if self.config.layout == "compact" else extra.slots
        partial = sum_slots(rows, slots, weights)
        received, work = self.group.exchange(partial.to(rows.dtype), async_op=True)

        def finish() -> Tensor:
            if work is not None:
                work.wait()
            parts = received.view(self.group.size, extra.block, rows.shape[1])[:, : handle.tokens]
            total = parts[0].to(partial.dtype)
            for part in parts[1:]:
                total = total + part
            return total.to(rows.dtype)

        return Pending(finish)

    def _push_slots(self, values: Tensor, handle: Handle) -> Tensor:
        extra: _Extra = handle.extra
        gathered = self.group.gather(_padded(values, extra.block, 0)).flatten(0, 1)
        if gathered.numel() == 0:
            return values.new_empty(
                (handle.rows,) if self.config.layout == "expert_major" else (handle.rows, values.shape[1])
            )
        if self.config.layout == "expert_major":
            return gathered.flatten()[extra.slot]
        return gathered.index_select(0, extra.source) * (extra.local_idx.index_select(0, extra.source) >= 0)

    def _pull_slots(self, values: Tensor, handle: Handle) -> Tensor:
        extra: _Extra = handle.extra
        ours = extra.slots < handle.rows
        safe = extra.slots.clamp(max=max(handle.rows - 1, 0))
        if handle.rows == 0:
            partial = values.new_zeros(extra.slots.shape)
        elif self.config.layout == "expert_major":
            partial = values[safe].where(ours, 0)
        else:
            partial = values[safe.amin(-1)].where(ours, 0)
        parts, _ = self.group.exchange(partial)
        parts = parts.view(self.group.size, extra.block, self.config.top_k)[:, : handle.tokens]
        owner = owners(handle.topk_idx, self.experts_per_rank)
        return parts.gather(0, owner.clamp(min=0).unsqueeze(0))[0].where(owner >= 0, 0)

    def _local_idx(self, handle: Handle) -> Tensor | None:
        extra: _Extra = handle.extra
        if self.config.layout == "expert_major":
            return None
        if extra.local_idx.numel() == 0:
            return extra.local_idx.new_empty((handle.rows, self.config.top_k))
        return extra.local_idx.index_select(0, extra.source)


def _first_per_row(slots: Tensor) -> Tensor:
    """Compact: the one received row of each token, [T, 1]; past the end where there is none."""
    return slots.amin(-1, keepdim=True)


def _padded(x: Tensor, rows: int, value: int) -> Tensor:
    """x with `value` rows added up to `rows`."""
    if x.shape[0] == rows:
        return x.contiguous()
    out = x.new_full((rows, *x.shape[1:]), value)
    out[: x.shape[0]] = x
    return out
