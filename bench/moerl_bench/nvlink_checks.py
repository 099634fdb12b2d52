"""What NVLink must hold on GPUs, whether its ranks share one (threads) or have one each (processes)."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from moerl_kernels import EpConfig, EpGroup, EpOverflow, EpTimeout, create
from moerl_kernels.nvlink import NVLink, loopback

SMALL = EpConfig(num_experts=24, top_k=4, hidden=512, max_tokens_per_rank=48)
_CAPTURES = threading.Lock()  # threads of one process capture one after the other


def inputs(config: EpConfig, group: EpGroup, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(x, topk_idx, weights) of a rank, with empty slots; sometimes no tokens at all."""
    generator = torch.Generator().manual_seed(100 * seed + group.rank)
    tokens = int(torch.randint(0, config.max_tokens_per_rank + 1, (1,), generator=generator))
    if seed % 4 == 3 and group.rank == seed % group.size:
        tokens = 0
    idx = torch.rand(tokens, config.num_experts, generator=generator).topk(config.top_k).indices
    idx[torch.rand(idx.shape, generator=generator) < 0.2] = -1
    x = torch.randn(tokens, config.hidden, generator=generator).to(config.dtype)
    weights = torch.rand(tokens, config.top_k, generator=generator)
    return x.to(group.device), idx.to(group.device), weights.to(group.device)


def used(got: Any) -> Tensor:
    """Which received rows are rows."""
    mask = torch.zeros(got.rows.shape[0], dtype=torch.bool, device=got.rows.device)
    for start, count in zip(got.starts.tolist(), got.counts.tolist(), strict=True):
        mask[start : start + count] = True
    return mask


CONTRACT: tuple[dict[str, Any], ...] = (
    {}, {"size_mode": "static"}, {"alignment": 16}, {"alignment": 128, "size_mode": "static"}, {"layout": "compact"},
    {"layout": "compact", "size_mode": "static"}, {"wire": "fp8"},
    {"wire": "fp8", "size_mode": "static", "scale_layout": "tma_column_major"}, {"dtype": torch.float32},
    {"max_tokens_per_rank": 1500, "hidden": 1024, "num_experts": 48, "size_mode": "static"},
)  # fmt: skip


def fitted(ranks: int, **changes: Any) -> EpConfig:
    """The small configuration with changes, for so many ranks."""
    config = replace(SMALL, **changes)
    return replace(config, num_experts=config.num_experts // ranks * ranks)


def configurations(ranks: int) -> list[EpConfig]:
    """All that this module makes backends for."""
    return [
        *(fitted(ranks, **changes) for changes in CONTRACT),
        fitted(ranks, size_mode="static", max_tokens_per_rank=96, num_experts=48),
        fitted(ranks, size_mode="static", capacity_rows=3),
    ]


def contract(group: EpGroup) -> int:
    """Everything against Reference; returns how many dispatches were compared."""
    done = 0
    for changes in CONTRACT:
        config = fitted(group.size, **changes)
        ours = create("NVLink", config, group)
        oracle = create("Reference", replace(config, size_mode="exact"), group)
        for seed in range(1 if config.max_tokens_per_rank > 1000 else 4):
            x, idx, weights = inputs(config, group, seed)
            got, want = ours.dispatch(x, idx, weights), oracle.dispatch(x, idx, weights)
            again = ours.dispatch(x, handle=got.handle)
            mask, n = used(got), want.rows.shape[0]
            where = f"{config} seed {seed} rank {group.rank}"
            same_rows = torch.equal(_bytes(got.rows[:n])[mask[:n]], _bytes(want.rows)[mask[:n]])
            assert same_rows, f"{where}: rows"
            assert torch.equal(_bytes(again.rows[:n])[mask[:n]], _bytes(want.rows)[mask[:n]]), f"{where}: again"
            assert torch.equal(got.counts, want.counts), f"{where}: counts"
            assert torch.equal(got.starts, want.starts), f"{where}: starts"
            assert got.weights is not None
            assert want.weights is not None
            assert torch.equal(got.weights[:n][mask[:n]], want.weights[mask[:n]]), f"{where}: weights"
            if got.scales is not None and want.scales is not None:
                assert torch.equal(got.scales[:n][mask[:n]], want.scales[mask[:n]]), f"{where}: scales"
            y = torch.randn(got.rows.shape, device=x.device, generator=None).to(config.dtype)
            y[~mask] = torch.nan
            w = None if config.layout == "compact" else got.weights
            out = ours.combine(y, got.handle, weights=w)
            reference = oracle.combine(y[:n], want.handle, weights=None if w is None else w[:n])
            torch.testing.assert_close(out, reference, rtol=2e-2, atol=2e-2)
            done += 1
        ours.check()
        ours.close()
    return done


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def gradients(group: EpGroup) -> float:
    """fp32 gradients of NVLink against Reference's: the largest difference."""
    config = fitted(group.size, dtype=torch.float32)
    ours, oracle = create("NVLink", config, group), create("Reference", config, group)
    x, idx, weights = inputs(config, group, 1)
    found = []
    for backend in (ours, oracle):
        a, b = x.clone().requires_grad_(), weights.clone().requires_grad_()
        got = backend.dispatch(a, idx, b)
        out = backend.combine(torch.sin(got.rows), got.handle, weights=got.weights)
        found.append(torch.autograd.grad(out.square().sum(), (a, b)))
    ours.check()
    worst = max(float((p - q).abs().max()) if p.numel() else 0.0 for p, q in zip(*found, strict=True))
    ours.close()
    return worst


def _start_at(backend: NVLink, epoch: int) -> None:
    """Let epochs begin elsewhere, on all ranks."""
    engine, where = backend._engine, backend._layout.offsets["CREDIT"]
    engine.state[0] = epoch
    engine.memory.views[backend.group.rank][where : where + 4 * backend.group.size].view(torch.int32).fill_(epoch)
    torch.cuda.synchronize()
    backend.group.barrier()


def stress(group: EpGroup, rounds: int, seconds: float) -> dict[str, Any]:
    """Random operations, delays on random ranks, eager calls and graph replays mixed, across the wrap of the epoch."""
    config = fitted(group.size, size_mode="static", max_tokens_per_rank=96, num_experts=48)
    backend = create("NVLink", config, group)
    assert isinstance(backend, NVLink)
    _start_at(backend, -37)
    sets = []
    for seed in range(4):
        x, idx, weights = inputs(config, group, seed)
        got = backend.dispatch(x, idx, weights)
        out = backend.combine(got.rows, got.handle, weights=got.weights)
        mask = used(got)
        group.barrier()
        with _CAPTURES:
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.current_stream()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                g_got = backend.dispatch(x, idx, weights)
                g_out = backend.combine(g_got.rows, g_got.handle, weights=g_got.weights)
        group.barrier()
        loopback.reserve(group.device)  # a capture gives back what the allocator held
        group.barrier()
        sets.append((x, idx, weights, got, got.rows.clone(), out.clone(), mask, graph, g_got, g_out))
    backend.check()
    shared, own = torch.Generator().manual_seed(5), torch.Generator().manual_seed(50 + group.rank)
    bad = torch.zeros(1, dtype=torch.int64, device=group.device)
    late = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    began, done = time.monotonic(), 0
    while done < rounds:
        for _ in range(50):
            which, kind = torch.randint(0, 4, (2,), generator=shared).tolist()
            x, idx, weights, first, rows, out, mask, graph, g_got, g_out = sets[which]
            if torch.rand(1, generator=own) < 0.3:
                sleep(int(torch.randint(1000, 200000, (1,), generator=own)))
            if kind == 0:
                graph.replay()
                have, combined = g_got.rows, g_out
            elif kind == 1:
                got = backend.dispatch(x, idx, weights)
                have, combined = got.rows, backend.combine(got.rows, got.handle, weights=got.weights)
            elif kind == 2:
                have = backend.dispatch(x, handle=first.handle).rows
                combined = backend.combine(have, first.handle, weights=first.weights)
            else:  # the receiving half on another stream, held up there
                pending = backend.dispatch_start(x, idx, weights)
                with torch.cuda.stream(late):
                    sleep(int(torch.randint(1000, 100000, (1,), generator=own)))
                    got = pending.finish()
                torch.cuda.current_stream().wait_stream(late)
                have, combined = got.rows, backend.combine(got.rows, got.handle, weights=got.weights)
            bad += _differs(have, rows, mask)
            bad += _differs(combined, out, None)
            done += 1
        torch.cuda.current_stream().synchronize()
        enough = group.gather_objects(time.monotonic() - began > seconds)
        if any(enough):
            break
    backend.check()
    epoch = int(backend._engine.state[0])
    backend.close()
    return {"rounds": done, "different": int(bad), "epoch": epoch, "seconds": time.monotonic() - began}


def sleep(cycles: int) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _differs(have: Tensor, want: Tensor, mask: Tensor | None) -> Tensor:
    other = have != want
    if mask is not None:
        other = other & mask.unsqueeze(1)
    return other.any().long()


def overflow(group: EpGroup) -> str:
    """EpOverflow on all ranks."""
    config = fitted(group.size, size_mode="static", capacity_rows=3)
    backend = create("NVLink", config, group)
    got = backend.dispatch(*inputs(config, group, 1))
    backend.combine(got.rows, got.handle, weights=got.weights)
    try:
        backend.check()
    except EpOverflow as error:
        backend.close()
        return str(error)
    raise AssertionError("no EpOverflow")


def failing(group: EpGroup, how: str) -> tuple[str, float]:
    """(what check() says, seconds) when one rank never launches, or fails before it does."""
    config = fitted(group.size, size_mode="static")
    backend = create("NVLink", config, group)
    assert isinstance(backend, NVLink)
    backend._engine.timeout = 0.3 if how == "absent" else 60.0
    x, idx, weights = inputs(config, group, 1)
    group.barrier()
    began = time.monotonic()
    if group.rank != 1:
        backend.dispatch(x, idx, weights)
    elif how == "fails":
        time.sleep(0.2)

        def broken(*_: Any) -> None:
            raise RuntimeError("out of memory, say")

        backend._engine.dispatch = broken  # type: ignore[method-assign, assignment]
        with contextlib.suppress(RuntimeError):
            backend.dispatch(x, idx, weights)
    else:
        time.sleep(1.0)
    try:
        backend.check()
    except EpTimeout as error:
        took = time.monotonic() - began
        torch.ones(1, device=group.device).add_(1).item()  # the context lives
        backend.close()
        return str(error), took
    raise AssertionError("no EpTimeout")
