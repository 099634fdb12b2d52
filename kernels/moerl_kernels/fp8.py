"""e4m3 rows with one fp32 scale per 1 x 128 block, as DeepEP and DeepGEMM lay them out."""

from __future__ import annotations

import torch
from torch import Tensor

from moerl_kernels.config import FP8_BLOCK

E4M3_MAX = 448.0
TMA_ALIGNMENT = 4  # fp32 elements in the 16 bytes that TMA strides must be a multiple of


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, hidden] -> ([T, hidden] e4m3, [T, hidden / 128] fp32); x is about rows * scale, zero blocks included."""
    blocks = x.float().reshape(x.shape[0], x.shape[1] // FP8_BLOCK, FP8_BLOCK)
    largest = blocks.abs().amax(-1).clamp(min=1e-10)
    # One division per block, not per element: the kernels do the same, so that all backends give the same bits.
    # Tensor by tensor, because torch divides by (or into) a number with a rounded reciprocal on GPUs.
    top = torch.full_like(largest, E4M3_MAX)
    rows = (blocks * torch.div(top, largest).unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn)
    return rows, torch.div(largest, top)


def dequantise(rows: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The inverse, up to rounding: [N, hidden] in `dtype`."""
    blocks = rows.float().reshape(rows.shape[0], scales.shape[1], FP8_BLOCK)
    return (blocks * scales.unsqueeze(-1)).flatten(-2).to(dtype)


def column_major(scales: Tensor) -> Tensor:
    """The same [N, B] values with N contiguous and its column stride a multiple of 16 bytes, for TMA."""
    n, blocks = scales.shape
    stride = (n + TMA_ALIGNMENT - 1) // TMA_ALIGNMENT * TMA_ALIGNMENT
    out = torch.empty(blocks, stride, dtype=scales.dtype, device=scales.device)[:, :n].t()
    out.copy_(scales)
    return out
