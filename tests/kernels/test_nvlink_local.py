"""NVLink's local kernels by Triton's interpreter: where slots go, and rows that are split in every way."""

from __future__ import annotations

import pytest
import torch

from moerl_kernels import EpConfig, EpGroup, create
from moerl_kernels.nvlink import NVLink
from moerl_kernels.nvlink.backend import _Extra

pytestmark = pytest.mark.torch

ALONE = EpGroup(0, 1, torch.device("cpu"))


def expected_codes(idx: torch.Tensor, shift: int) -> tuple[list[int], dict[int, int]]:
    """expert << shift | how many slots before have the same expert, counted one by one."""
    seen: dict[int, int] = {}
    codes = []
    for expert in idx.flatten().tolist():
        codes.append(-1 if expert < 0 else expert << shift | seen.get(expert, 0))
        if expert >= 0:
            seen[expert] = seen.get(expert, 0) + 1
    return codes, seen


@pytest.mark.parametrize(("tokens", "experts"), [(1, 4), (40, 12), (700, 24), (700, 2)])
def test_slots_get_their_rank_in_their_expert_in_order(tokens: int, experts: int) -> None:
    """One block (up to 2048 slots) and several; empty slots and repeated experts too."""
    top_k = min(4, experts)
    config = EpConfig(
        num_experts=experts, top_k=top_k, hidden=8, max_tokens_per_rank=700 if tokens > 100 else 40, size_mode="static"
    )
    backend = create("NVLink", config, ALONE)
    assert isinstance(backend, NVLink)
    generator = torch.Generator().manual_seed(tokens)
    idx = torch.randint(-1, experts, (tokens, top_k), generator=generator)
    extra = backend._route(idx, None).extra
    assert isinstance(extra, _Extra)
    codes, seen = expected_codes(idx, backend._layout.shift)
    assert extra.codes.flatten().tolist() == codes
    assert extra.counts.tolist() == [seen.get(expert, 0) for expert in range(experts)]


@pytest.mark.parametrize("hidden", [8, 24, 1288, 2560])
@pytest.mark.parametrize("tokens", [3, 1100])
def test_rows_of_any_length_are_expanded_and_added(hidden: int, tokens: int) -> None:
    """Lengths that are no power of two, few tokens (split by columns) and many."""
    config = EpConfig(num_experts=4, top_k=2, hidden=hidden, max_tokens_per_rank=max(tokens, 8))
    backend = create("NVLink", config, ALONE)
    generator = torch.Generator().manual_seed(hidden)
    tokens = min(tokens, 60)
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    idx = torch.rand(tokens, 4, generator=generator).topk(2).indices
    got = backend.dispatch(x, idx, torch.full((tokens, 2), 0.5))
    order = torch.sort(idx.flatten(), stable=True).indices
    assert torch.equal(got.rows, x[order // 2])
    assert torch.equal(backend.combine(got.rows, got.handle, weights=got.weights), x)
