"""Moving and adding rows on one device: the memory-bound half of every backend.

On a GPU the sum is a Triton kernel (24 times faster than torch operations at 8192 tokens of 7168 on an H200), elsewhere
torch operations of the same order. No order comes from atomics, and sizes that change from step to step do not
specialise the kernel (a recompilation in the middle of a run takes seconds and skews the ranks' launches).
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: the torch operations below are all there is
    triton = None


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index] for any row type: [T, ...], [N] int64 in [0, T) -> [N, ...]; zeros where x has no rows at all.

    torch's own index_select: on an H200 a Triton kernel of 16-byte moves was slower at every size tried.
    """
    if x.shape[0] == 0:
        return torch.zeros((index.numel(), *x.shape[1:]), dtype=x.dtype, device=x.device)
    if x.dtype == torch.float8_e4m3fn:  # index_select has no fp8 in every torch version; it is bytes all the same
        return x.view(torch.uint8).index_select(0, index).view(x.dtype)
    return x.index_select(0, index)


def sum_slots(rows: Tensor, slots: Tensor, weights: Tensor | None = None) -> Tensor:
    """Add each token's rows in slot order: [N, hidden], [T, k] int64, [N] fp32 -> [T, hidden].

    Sums (and products with `weights`, one per row) are fp32, fp64 for fp64; the result has that type. A slot of N or
    more adds nothing, whatever stands in any row, NaN included.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    tokens, hidden = slots.shape[0], rows.shape[1]
    if rows.shape[0] == 0 or tokens == 0:
        return torch.zeros(tokens, hidden, dtype=wide, device=rows.device)
    if not _on_gpu(rows) or wide != torch.float32:
        return _sum_slots_in_torch(rows, slots, weights, wide)
    out = torch.empty(tokens, hidden, dtype=wide, device=rows.device)
    block = min(triton.next_power_of_2(hidden), 2048)
    _sum[(tokens, triton.cdiv(hidden, block))](
        rows.contiguous(),
        slots.contiguous(),
        rows if weights is None else weights.float().contiguous(),
        out,
        rows.shape[0],
        hidden,
        K=slots.shape[1],
        WEIGHTED=weights is not None,
        BLOCK=block,
        num_warps=4,
    )
    return out


def _on_gpu(x: Tensor) -> bool:
    return triton is not None and x.is_cuda


def _sum_slots_in_torch(rows: Tensor, slots: Tensor, weights: Tensor | None, wide: torch.dtype) -> Tensor:
    total = torch.zeros(slots.shape[0], rows.shape[1], dtype=wide, device=rows.device)
    for slot in slots.unbind(1):
        there = (slot < rows.shape[0]).unsqueeze(-1)
        safe = slot.clamp(max=rows.shape[0] - 1)
        part = rows.index_select(0, safe).to(wide)
        if weights is not None:
            part = part * weights.index_select(0, safe).to(wide).unsqueeze(-1)
        total = total + part.where(there, 0)
    return total


if triton is not None:

    @triton.jit(do_not_specialize=["n"])  # type: ignore[untyped-decorator]
    def _sum(rows, slots, weights, out, n, hidden, K: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """out[t, :] = sum over k of weights[slots[t, k]] * rows[slots[t, k], :], in the order of k."""
        token = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < hidden
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for k in tl.static_range(K):
            slot = tl.load(slots + token * K + k)
            there = slot < n
            value = tl.load(rows + slot * hidden + column, mask=inside & there, other=0.0).to(tl.float32)
            if WEIGHTED:
                value = value * tl.load(weights + slot, mask=there, other=0.0)
            total += value
        tl.store(out + token * hidden + column, total, mask=inside)
