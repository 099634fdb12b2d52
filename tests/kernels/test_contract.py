"""One contract for every backend: the same rows in the same order, the same sums, the same gradients."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from moerl_kernels import BACKENDS, EpConfig, EpConfigError, EpGroup, EpInputError, EpMismatch, EpOverflow, create
from support.ranks import run

pytestmark = pytest.mark.torch

RANKS = (1, 2, 4)
# DeepEP needs a GPU and the user's deep_ep: test_deepep.py holds it to the same results over a stand-in.
HERE = [name for name in BACKENDS if name != "DeepEP"]
FAST = [name for name in HERE if name != "Reference"]
BASE = EpConfig(num_experts=8, top_k=3, hidden=16, max_tokens_per_rank=6, dtype=torch.float64)


def routing(kind: str, rank: int, config: EpConfig, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, topk_idx, weights) of one rank, deterministic."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    tokens = int(torch.randint(1, config.max_tokens_per_rank + 1, (1,), generator=generator))
    if kind == "empty rank" and rank == 0:
        tokens = 0
    if kind == "all empty":
        tokens = 0
    scores = torch.rand(tokens, config.num_experts, generator=generator)
    if kind == "hot expert":
        scores[:, 5] += 10
    idx = scores.topk(config.top_k).indices
    if kind == "masked slots":
        idx[torch.rand(idx.shape, generator=generator) < 0.4] = -1
        idx[:1] = -1  # a token without any expert
    x = torch.randn(tokens, config.hidden, generator=generator, dtype=torch.float64).to(config.dtype)
    return x, idx, torch.rand(tokens, config.top_k, generator=generator, dtype=torch.float64)


KINDS = ("uniform", "masked slots", "empty rank", "all empty", "hot expert")


def exchange(name: str, config: EpConfig, kind: str, seed: int) -> dict[str, Any]:
    """One dispatch and combine with gradients on this rank, everything that the contract speaks of."""
    group = EpGroup.of()
    backend = create(name, config, group)
    x, idx, weights = routing(kind, group.rank, config, seed)
    x.requires_grad_()
    weights.requires_grad_()
    got = backend.dispatch(x, idx, weights)
    used = torch.zeros(got.rows.shape[0], dtype=torch.bool)
    for start, count in zip(got.starts.tolist(), got.counts.tolist(), strict=True):
        used[start : start + count] = True
    # An "expert": another factor for every row, so that mixed-up rows are seen.
    scale = (0.5 + 0.01 * torch.arange(len(used), dtype=torch.float64)).to(config.dtype)
    y = torch.where(used.unsqueeze(1), got.rows * scale.unsqueeze(1), torch.nan)  # gaps must never be read
    if config.layout == "expert_major":
        out = backend.combine(y, got.handle, weights=got.weights)
    else:
        y = y * (got.weights * (got.local_idx >= 0)).sum(-1, keepdim=True).to(y.dtype)
        out = backend.combine(y, got.handle)
    out.double().square().sum().backward()
    backend.check()
    n = int(used.nonzero().max()) + 1 if used.any() else 0
    return {
        "rows": got.rows.detach()[:n].where(used[:n].unsqueeze(1), 0),
        "weights": got.weights.detach()[:n].where(used[:n] if got.weights.dim() == 1 else used[:n].unsqueeze(1), 0),
        "local_idx": None if got.local_idx is None else got.local_idx[:n],
        "counts": got.counts,
        "starts": got.starts,
        "out": out.detach(),
        "grad_x": x.grad,
        "grad_weights": weights.grad,
    }


def compare(name: str, configs: list[EpConfig], tolerance: float) -> int:
    """Everything of `name` against Reference; returns how many comparisons were made."""
    done = 0
    known: dict[Any, dict[str, Any]] = {}
    for config, (seed, kind) in itertools.product(configs, enumerate(KINDS)):
        exact = replace(config, size_mode="exact", capacity_rows=None)
        if (exact, kind) not in known:
            known[exact, kind] = exchange("Reference", exact, kind, seed)
        want, have = known[exact, kind], exchange(name, config, kind, seed)
        again = exchange(name, config, kind, seed) if kind == "hot expert" else have
        for key, value in want.items():
            where = f"{name} {config} {kind} rank {dist.get_rank()}: {key}"
            if value is None:
                assert have[key] is None, where
                continue
            assert torch.equal(have[key], again[key]), f"{where} is not repeatable"
            if key in ("rows", "weights", "counts", "starts", "local_idx"):
                assert torch.equal(have[key], value), f"{where}\n{have[key]}\n{value}"
            else:
                torch.testing.assert_close(
                    have[key], value, rtol=tolerance, atol=tolerance, msg=lambda m, w=where: f"{w}: {m}"
                )
            done += 1
    return done


def shapes(**changes: Any) -> list[EpConfig]:
    """Both layouts and size modes of the base configuration, and all alignments between them."""
    base = replace(BASE, **changes)
    sizes = ((1, "exact"), (1, "static"), (8, "static"), (16, "exact"), (128, "exact"))
    major = [replace(base, alignment=a, size_mode=m) for a, m in sizes]
    return major + [replace(base, layout="compact", size_mode=m) for m in ("exact", "static")]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", FAST)
def test_equals_reference(name: str, ranks: int) -> None:
    """fp64: rows bitwise, sums and gradients to rounding."""
    configs = shapes()
    if name == "NVLink" and ranks > 2:  # interpreted, and each waiting process keeps a core busy
        configs = [replace(BASE, alignment=8, size_mode="static"), replace(BASE, layout="compact")]
    assert all(run(ranks, compare, name, configs, 1e-12))


@pytest.mark.parametrize("name", FAST)
def test_bf16_sums_differ_by_one_rounding_per_rank(name: str) -> None:
    """bf16: 8 bits of mantissa, at most one rounding per contributing rank and row."""
    assert all(run(2, compare, name, [replace(BASE, dtype=torch.bfloat16, alignment=8)], 3e-2))


def _gradcheck(name: str) -> bool:
    group = EpGroup.of()
    backend = create(name, replace(BASE, hidden=3, max_tokens_per_rank=3, top_k=2), group)
    x, idx, weights = routing("masked slots", group.rank, backend.config, 3)

    def pair(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        got = backend.dispatch(x, idx, weights)
        return backend.combine(torch.sin(got.rows), got.handle, weights=got.weights)

    return torch.autograd.gradcheck(pair, (x.requires_grad_(), weights.requires_grad_()))


@pytest.mark.parametrize("name", HERE)
def test_gradcheck(name: str) -> None:
    """Numeric gradients of dispatch, a non-linear expert and combine."""
    assert run(1, _gradcheck, name) == [True]


def _cached_handle(name: str) -> bool:
    group = EpGroup.of()
    backend = create(name, BASE, group)
    x, idx, _ = routing("masked slots", group.rank, BASE, 7)
    first = backend.dispatch(x, idx)
    second = backend.dispatch(x * 2, handle=first.handle)
    return torch.equal(second.rows, first.rows * 2) and second.weights is None


@pytest.mark.parametrize("name", HERE)
def test_a_handle_dispatches_again_along_the_same_routes(name: str) -> None:
    """What gradients and replay rely on."""
    assert run(2, _cached_handle, name) == [True, True]


def _halves(name: str) -> bool:
    group = EpGroup.of()
    backend = create(name, BASE, group)
    x, idx, weights = routing("uniform", group.rank, BASE, 5)
    pending = backend.dispatch_start(x, idx, weights)
    got = pending.finish()
    whole = backend.combine(got.rows, got.handle, weights=got.weights)
    half = backend.combine_start(got.rows, got.handle, weights=got.weights)
    return torch.equal(half.finish(), whole)


@pytest.mark.parametrize("name", HERE)
def test_send_and_receive_halves_equal_the_whole(name: str) -> None:
    """So that work can be put between them."""
    assert all(run(2, _halves, name))


def _fp8(name: str, exact: bool, layout: Any = "expert_major") -> float:
    group = EpGroup.of()
    config = replace(BASE, dtype=torch.bfloat16, hidden=256, layout=layout, wire="fp8", scale_layout="tma_column_major")
    backend = create(name, config, group)
    x, idx, weights = routing("uniform", group.rank, config, 2)
    if exact:  # every block spans the whole of e4m3, so that its scale is a power of two and nothing is rounded
        x = x.float().view(-1, 128).clamp(-3, 3)
        x[:, 0] = 7
        x = (x * 64).to(torch.float8_e4m3fn).to(config.dtype).view(-1, config.hidden) * 0.25
    plain = create("Reference", replace(config, wire="same"), group).dispatch(x, idx, weights)
    from moerl_kernels import fp8

    got = backend.dispatch(x, idx, weights)
    assert got.scales is not None
    assert got.scales.stride(0) == 1
    assert got.scales.stride(1) % 4 == 0
    assert got.rows.dtype == torch.float8_e4m3fn
    back = fp8.dequantise(got.rows, got.scales, torch.float32)
    return float((back - plain.rows.float()).abs().max() / plain.rows.float().abs().max())


@pytest.mark.parametrize("layout", ["expert_major", "compact"])
@pytest.mark.parametrize("name", HERE)
def test_fp8_rows_carry_their_scales(name: str, layout: str) -> None:
    """Rows that e4m3 can hold arrive as they were."""
    assert max(run(2, _fp8, name, True, layout)) == 0


def _fp8_gradient(name: str) -> str:
    group = EpGroup.of()
    config = replace(BASE, dtype=torch.bfloat16, hidden=128, wire="fp8")
    backend = create(name, config, group)
    x, idx, weights = routing("uniform", group.rank, config, 2)
    backend.dispatch(x, idx, weights.requires_grad_())  # router weights may want gradients elsewhere
    with pytest.raises(EpConfigError) as raised:
        backend.dispatch(x.requires_grad_(), idx, weights)
    return str(raised.value)


@pytest.mark.parametrize("name", HERE)
def test_fp8_refuses_gradients(name: str) -> None:
    """Rather than to leave them out in silence."""
    assert all("no gradient" in message for message in run(2, _fp8_gradient, name))


@pytest.mark.parametrize("name", [name for name in HERE if name != "NVLink"])
def test_fp8_rows_are_rounded(name: str) -> None:
    """e4m3 has 3 bits of mantissa: half a unit in the last place is 1/16 of a value.

    Not so in Triton's interpreter, whose conversion to fp8 loses the carry: NVLink's rounding is checked on GPUs.
    """
    assert 0 < max(run(2, _fp8, name, False)) < 1 / 16


def _overflow(name: str) -> str:
    group = EpGroup.of()
    config = replace(BASE, size_mode="static", capacity_rows=2)
    backend = create(name, config, group)
    x, idx, weights = routing("hot expert", group.rank, config, 1)
    got = backend.dispatch(x, idx, weights)
    assert got.rows.shape[0] == 2
    backend.combine(got.rows, got.handle, weights=got.weights)
    with pytest.raises(EpOverflow) as raised:
        backend.check()
    backend.check()  # said once
    return str(raised.value)


@pytest.mark.parametrize("name", FAST)
def test_rows_beyond_capacity_are_an_error_on_all_ranks(name: str) -> None:
    """Also on the rank that had room enough."""
    messages = run(4, _overflow, name)
    assert len(set(messages)) == 1
    assert "capacity_rows is 2" in messages[0]


BAD = {
    "more tokens": lambda x, idx, w: (x.repeat(9, 1), idx.repeat(9, 1), w.repeat(9, 1)),
    "dtype": lambda x, idx, w: (x.float(), idx, w),
    "topk_idx is not": lambda x, idx, w: (x, idx[:, :1], w),
    "differ in shape": lambda x, idx, w: (x, idx, w[:, :1]),
    "something else": lambda x, idx, w: (x, idx + 100, w),
}


def _bad_input(name: str, what: str, mode: str) -> str:
    group = EpGroup.of()
    backend = create(name, replace(BASE, size_mode=mode), group)
    tensors = routing("uniform", group.rank, BASE, 4)
    if group.rank == 1:
        tensors = BAD[what](*tensors)
    if mode == "exact":
        with pytest.raises(EpInputError) as raised:
            backend.dispatch(*tensors)
        return str(raised.value)
    got = backend.dispatch(*tensors)
    backend.combine(got.rows, got.handle, weights=got.weights)
    with pytest.raises(EpInputError) as raised:
        backend.check()
    return str(raised.value)


@pytest.mark.parametrize("what", list(BAD))
@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in HERE for mode in ("exact", "static") if (name, mode) != ("Reference", "static")],
)
def test_bad_input_of_one_rank_is_an_error_on_all(name: str, what: str, mode: str) -> None:
    """And nobody hangs; with static sizes it is said at check()."""
    for message in run(2, _bad_input, name, what, mode):
        assert "rank 1" in message
        if mode == "exact":
            assert what in message


def _mismatch(what: str) -> str:
    group = EpGroup.of()
    second = group.rank == 1
    config = replace(BASE, hidden=32) if second and what == "config" else BASE
    name = "NCCLAllGather" if second and what == "backend" else "NCCLAllToAll"
    with pytest.raises(EpMismatch) as raised:
        create(name, config, group)
    return str(raised.value)


@pytest.mark.parametrize("what", ["config", "backend"])
def test_ranks_that_disagree_all_raise_the_same(what: str) -> None:
    """Before anything is sent."""
    messages = run(2, _mismatch, what)
    assert messages[0] == messages[1]
    assert f"{what}: " in messages[0]
    assert "on ranks [1]" in messages[0]
