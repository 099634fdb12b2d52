"""Where each row goes: the same arithmetic for every backend, on the device, without a host sync.

Order is part of the contract, so that results are bitwise repeatable and comparable between backends:
expert-major rows are sorted by (local expert, source rank, source token, slot), compact rows by
(source rank, source token). No order comes from atomics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def align_up(value: Tensor, alignment: int) -> Tensor:
    """The next multiple of `alignment`, elementwise."""
    return (value + (alignment - 1)) // alignment * alignment


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Positions of P candidate rows in the received tensor of N rows.

    position: [P] int64, the row of each candidate; N (one past the end) for candidates that are not ours or do not fit.
    counts: [L] int64, rows per local expert (expert-major) or per source rank (compact).
    starts: [L] int64, first row of each; multiples of the alignment.
    total: scalar int64, rows up to the last one, alignment gaps included; may exceed N (overflow).
    """

    position: Tensor
    counts: Tensor
    starts: Tensor
    total: Tensor


def arrange(group: Tensor, *, groups: int, alignment: int, rows: int | None) -> Arrangement:
    """Stable counting sort of candidates by group.

    group: [P] int64 in [0, groups), or -1 for candidates that are not ours. `rows` is N, None for exactly as
    many as needed (then nothing can overflow, and position of the others is `total`).
    """
    device = group.device
    key = torch.where(group < 0, groups, group)
    ordered, order = torch.sort(key, stable=True)
    sizes = torch.zeros(groups + 1, dtype=torch.int64, device=device).scatter_add_(0, key, torch.ones_like(key))
    counts = sizes[:groups]
    aligned = align_up(counts, alignment)
    starts = aligned.cumsum(0) - aligned
    total = aligned.sum()
    first = sizes.cumsum(0) - sizes  # first sorted place of each group
    rank_in_group = torch.arange(key.numel(), device=device) - first[ordered]
    row = torch.cat([starts, total.reshape(1)])[ordered] + rank_in_group
    end = total if rows is None else torch.full_like(total, rows)
    row = torch.where((ordered == groups) | (row >= end), end, row)
    position = torch.empty_like(key).scatter_(0, order, row)
    return Arrangement(position=position, counts=counts, starts=starts, total=total)


def owners(topk_idx: Tensor, experts_per_rank: int) -> Tensor:
    """Rank that holds each slot's expert; -1 for empty slots. Shape of topk_idx."""
    return torch.where(topk_idx < 0, -1, topk_idx // experts_per_rank)


def local_expert(topk_idx: Tensor, *, rank: int, experts_per_rank: int) -> Tensor:
    """Local index of each slot's expert on `rank`, -1 where it is held elsewhere or the slot is empty."""
    local = topk_idx - rank * experts_per_rank
    return torch.where((topk_idx >= 0) & (local >= 0) & (local < experts_per_rank), local, -1)
