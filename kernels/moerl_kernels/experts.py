"""The experts of a `transformers` MoE block, spread over the ranks of a backend.

`Qwen3MoeSparseMoeBlock` calls `experts(hidden [T, H], indices [T, k], weights [T, k]) -> [T, H]`; this module
takes that place with this rank's slice of the fused weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moerl_kernels.backend import Dispatched, EpBackend
from moerl_kernels.errors import EpConfigError


class ExpertParallelExperts(nn.Module):
    """Gated experts on this rank: gate_up_proj [L, 2I, H] (gate rows first) and down_proj [L, H, I], L = E / R.

    Tokens of every rank pass through; a rank without tokens takes part in forward and backward all the same.
    Gradients of the weights are sums over all ranks' tokens: divide the loss by the global token count and do
    not reduce them again.
    """

    def __init__(self, gate_up_proj: Tensor, down_proj: Tensor, act_fn: nn.Module, backend: EpBackend) -> None:
        super().__init__()
        if backend.config.layout != "expert_major" or backend.config.wire != "same":
            raise EpConfigError("ExpertParallelExperts needs layout expert_major and wire same")
        self.gate_up_proj = nn.Parameter(gate_up_proj)
        self.down_proj = nn.Parameter(down_proj)
        self.act_fn = act_fn
        self.backend = backend

    @classmethod
    def of(cls, experts: Any, backend: EpBackend) -> ExpertParallelExperts:
        """This rank's slice of a module with fused weights of all experts (Qwen3MoeExperts and its like)."""
        n = backend.experts_per_rank
        mine = slice(backend.group.rank * n, (backend.group.rank + 1) * n)
        return cls(
            experts.gate_up_proj.detach()[mine].clone(),
            experts.down_proj.detach()[mine].clone(),
            experts.act_fn,
            backend,
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[T, H], [T, k], [T, k] -> [T, H]. A collective."""
        got = self.backend.dispatch(hidden_states, top_k_index, top_k_weights)
        gate, up = grouped_linear(got.rows, self.gate_up_proj, got, self.backend.config.alignment).chunk(2, dim=-1)
        y = grouped_linear(self.act_fn(gate) * up, self.down_proj, got, self.backend.config.alignment)
        return self.backend.combine(y, got.handle, weights=got.weights)


def grouped_linear(rows: Tensor, weight: Tensor, got: Dispatched, alignment: int) -> Tensor:
    """rows of expert e times weight[e] transposed: [N, in], [L, out, in] -> [N, out]. Reads no alignment gap.

    Without gaps this is torch's grouped matrix multiplication, which stops at the last used row (also in size_mode
    static). With gaps, or where that kernel does not exist (fp64, widths that are no multiple of 16 bytes), one
    multiplication per expert, which reads the counts on the host.
    """
    if rows.shape[0] == 0:
        return rows @ weight[0].t()  # no rows, but a zero gradient for the weights
    wide = all(size * rows.element_size() % 16 == 0 for size in weight.shape[1:])
    if alignment == 1 and rows.dtype in (torch.float32, torch.bfloat16, torch.float16) and wide:
        ends = (got.starts + got.counts).to(torch.int32)
        return F.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)
    out = []
    end = 0
    for expert, (start, count) in enumerate(zip(got.starts.tolist(), got.counts.tolist(), strict=True)):
        if start > end:
            out.append(rows.new_zeros(start - end, weight.shape[1]))
        out.append(rows[start : start + count] @ weight[expert].t())
        end = start + count
    out.append(rows.new_zeros(rows.shape[0] - end, weight.shape[1]))
    return torch.cat(out)


def spread_experts(model: nn.Module, backend: EpBackend) -> int:
    """Replace every `mlp.experts` of a transformers model by this rank's part; returns how many layers it were.

    The backend is shared: layers run one after the other. Raises EpConfigError if the model has no such experts.
    """
    layers = [module for module in model.modules() if hasattr(getattr(module, "experts", None), "gate_up_proj")]
    if not layers:
        raise EpConfigError(f"{type(model).__name__} has no fused experts to spread")
    for module in layers:
        module.experts = ExpertParallelExperts.of(module.experts, backend)
    return len(layers)
