"""NVLink's kernels on one GPU: results and protocol by ranks that are threads, and what the row movers reach.

`python -m moerl_bench.nvlink_one_gpu --json FILE`. Ranks that share a GPU prove results and protocol, never the order
of stores between GPUs. Times are those of one rank's local work alone, beside a copy in the same run; none of them is
one of a wire.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from moerl_bench import nvlink_checks as checks
from moerl_kernels import EpConfig, EpGroup, create
from moerl_kernels.nvlink import NVLink, layout, loopback, programs

Task = tuple[EpConfig, int, "Variant | None"]  # configuration, ranks, shape
SHAPES, WARPS = dict(layout.SHAPES), dict(programs.WARPS)
BIG = EpConfig(num_experts=192, top_k=8, hidden=7168, max_tokens_per_rank=8192, size_mode="static")


def timed(work: Callable[[], Any], before: Callable[[], Any] | None = None, n: int = 15) -> float:
    """Median microseconds of `work` on the device."""
    times: list[float] = []
    for i in range(n + 3):
        if before is not None:
            before()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        checks.sleep(2_000_000)  # the launch is on its way before the clock starts
        start.record()
        work()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(start.elapsed_time(end) * 1000)
    return statistics.median(times)


def copy_speed() -> float:
    """Bytes read and written per microsecond by a copy of 1 GiB."""
    a, b = (torch.randint(0, 9, (2**28,), dtype=torch.int32, device="cuda") for _ in range(2))
    took = timed(lambda: a.copy_(b))
    return 8 * 2**28 / took


def _half_to_rank_0(group: EpGroup, config: EpConfig, *, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens whose slots lie half on rank 0 and half on this rank (rank 0: half on each of the others)."""
    local, k = config.num_experts // group.size, config.top_k
    generator = torch.Generator(device=group.device).manual_seed(group.rank)
    first = torch.rand(tokens, local, generator=generator, device=group.device).topk(k // 2).indices
    second = torch.rand(tokens, local, generator=generator, device=group.device).topk(k // 2).indices
    a, b = (1, 2) if group.rank == 0 else (0, group.rank)
    idx = torch.cat([first + a * local, second + b * local], 1)
    x = torch.randn(tokens, config.hidden, generator=generator, device=group.device).bfloat16()
    return x, idx, torch.rand(tokens, k, generator=generator, device=group.device)


def halves(group: EpGroup, config: EpConfig, tokens: int, grid: int) -> dict[str, float]:
    """Rank 0's expand and final reduce and rank 1's pre-reduce, each alone on the GPU; microseconds."""
    backend = create("NVLink", config, group)
    assert isinstance(backend, NVLink)
    usual = backend._engine.grid  # for whole operations: all ranks' programs fit on the GPU together
    alone = replace(usual, programs=grid, wire=grid, combine_wire=grid)
    out = {}
    mine = tokens if group.rank else 0
    x, idx, weights = _half_to_rank_0(group, config, tokens=mine)
    backend._engine.grid = alone
    out["expand"] = _one_after_another(group, lambda: backend.dispatch_start(x, idx, weights), 0)
    x, idx, weights = _half_to_rank_0(group, config, tokens=tokens - mine)
    backend._engine.grid = usual
    group.barrier()
    got = backend.dispatch(x, idx, weights)
    torch.cuda.current_stream().synchronize()
    group.barrier()
    backend._engine.grid = alone
    y = torch.randn(got.handle.rows, config.hidden, device=group.device).bfloat16()
    send = lambda: backend.combine_start(y, got.handle, weights=got.weights)  # noqa: E731
    out["final reduce"] = _one_after_another(group, send, 0)
    out["pre-reduce"] = _one_after_another(group, send, 1, sending=True)
    backend._engine.grid = usual
    group.barrier()
    backend.check()
    backend.close()
    return out


def _one_after_another(group: EpGroup, start: Callable[[], Any], who: int, *, sending: bool = False) -> float:
    """Median microseconds of rank `who`'s half, while the others do nothing."""
    times = []
    for _ in range(12):
        pending = None
        for rank in range(group.size):
            if rank == group.rank:
                pending, took = _alone(start)
                if sending and rank == who:
                    times.append(took)
            group.barrier()
        for rank in range(group.size):
            if rank == group.rank and pending is not None:
                _, took = _alone(pending.finish)
                if not sending and rank == who:
                    times.append(took)
            group.barrier()
    return statistics.median(times[2:]) if times else 0.0


def _alone(work: Callable[[], Any]) -> tuple[Any, float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    checks.sleep(2_000_000)
    start.record()
    got = work()
    end.record()
    end.synchronize()
    return got, start.elapsed_time(end) * 1000


def permute(config: EpConfig, tokens: int) -> float:
    """One rank: quantise (with wire fp8) and permute, microseconds."""
    group = EpGroup(0, 1, torch.device("cuda"))
    backend = create("NVLink", config, group)
    x = torch.randn(tokens, config.hidden, device="cuda").bfloat16()
    idx = torch.rand(tokens, config.num_experts, device="cuda").topk(config.top_k).indices
    weights = torch.rand(tokens, config.top_k, device="cuda")
    handle = backend.dispatch(x, idx, weights).handle
    took = timed(lambda: backend.dispatch(x, handle=handle))
    backend.close()
    return took


def route(config: EpConfig, tokens: int) -> float:
    """Placing every slot, microseconds in a graph."""
    backend = create("NVLink", replace(config, max_tokens_per_rank=tokens), EpGroup(0, 1, torch.device("cuda")))
    idx = torch.rand(tokens, config.num_experts, device="cuda").topk(config.top_k).indices
    backend._route(idx, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            backend._route(idx, None)
    return timed(graph.replay) / 10


class Variant(NamedTuple):
    """How the row movers are compiled and launched."""

    rows: int
    piece: int  # bytes of a row that a step moves
    warps: int
    programs: int = 116


def tune(variant: Variant | None) -> None:
    """Compile what comes next in another shape than the usual one."""
    if variant is None:
        layout.SHAPES = dict(SHAPES)
        programs.WARPS = dict(WARPS)
        return
    layout.SHAPES = dict.fromkeys(SHAPES, layout.Shape(variant.rows, variant.piece))
    programs.WARPS = dict.fromkeys(WARPS, variant.warps)


def compile_one(task: Task) -> None:
    """Into Triton's cache, without a GPU."""
    config, ranks, variant = task
    tune(variant)
    for program in programs.Programs.of(layout.Layout(config, ranks)).all().values():
        triton.compile(program.source(), target=GPUTarget("cuda", 90, 32), options={"num_warps": program.warps})


def compile_all(variants: list[Variant | None], tokens: list[int], *, checked: bool) -> int:
    """Everything that this program launches, over all cores; compiling is most of the time otherwise."""
    tasks: list[Task] = [
        (config, ranks, None) for ranks in (1, 2, 3, 4, 8) for config in checks.configurations(ranks) if checked
    ]
    for variant in variants:
        for t in tokens:
            for wire in ("same", "fp8"):
                config = replace(BIG, wire=wire, max_tokens_per_rank=t)
                tasks += [(config, 3, variant), (config, 1, variant)]
    compile_tasks(tasks)
    return len(tasks)


def compile_tasks(tasks: list[Task]) -> None:
    """All of them, over all cores."""
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        pool.map(compile_one, tasks, chunksize=1)


def figures(variants: list[Variant | None], tokens: int) -> list[dict[str, Any]]:
    """Each stage at (warps, bytes of a step, programs), with its bytes, its rate and that over a copy's."""
    row8, row16 = 7168 + 224, 14336
    k = BIG.top_k
    moved = {
        "quantise + permute fp8": tokens * (row16 + k * row8),
        "permute bf16": tokens * (1 + k) * row16,
        "expand fp8": tokens * (2 * row8 + k * row8),
        "expand bf16": tokens * (2 + k) * row16,
        "pre-reduce bf16": tokens * (k // 2 + 1) * row16,
        "final reduce bf16": tokens * 3 * row16,
    }
    out = []
    for variant in variants:
        tune(variant)
        grid = variant.programs if variant else 116
        copy = copy_speed()
        times = {}
        for wire, short in (("fp8", "fp8"), ("same", "bf16")):
            config = replace(BIG, wire=wire, max_tokens_per_rank=tokens)  # type: ignore[arg-type]
            got = loopback.run(3, halves, config, tokens, grid)
            times[f"expand {short}"] = got[0]["expand"]
            if wire == "same":
                times |= {"final reduce bf16": got[0]["final reduce"], "pre-reduce bf16": got[1]["pre-reduce"]}
            times["quantise + permute fp8" if wire == "fp8" else "permute bf16"] = permute(config, tokens)
        for name, took in times.items():
            rate = moved[name] / took
            said = {"stage": name, "tokens": tokens, "us": round(took, 1), "bytes": moved[name]}
            said |= {"GBps": round(rate / 1000, 1), "ofCopy": round(rate / copy, 3)}
            out.append(said | {"shape": str(variant or "usual")})
            print(f"{variant} {name} {took:.1f} us {rate / copy:.3f}", flush=True)
        print("copy GB/s", round(copy / 1000, 1), flush=True)
    tune(None)
    return out


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the raw figures")
    parser.add_argument("--stress-seconds", type=float, default=20)
    parser.add_argument("--variants", nargs="*", default=[], help="rows:bytes of a piece:warps[:programs]")
    parser.add_argument("--figures-only", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    options = parser.parse_args()
    # Loading a kernel at its first launch waits for running ones, and a rank's may wait for the one that loads.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # fewer, and streams of two ranks share a queue
    variants: list[Variant | None] = [Variant(*map(int, text.split(":"))) for text in options.variants] or [None]
    began = time.monotonic()
    count = compile_all(variants, options.tokens, checked=not options.figures_only)
    print(f"[{time.monotonic() - began:.1f} s] compiled {count} configurations")
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}

    def step(name: str, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            found[name] = work()
        except Exception as error:
            found[name] = f"FAILED {type(error).__name__}: {str(error)[:600]}"
        print(f"[{time.monotonic() - began:.1f} s] {name}: {str(found[name])[:500]}", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1))

    for ranks in (1, 2, 4) if not options.figures_only else ():
        step(f"contract, {ranks} ranks", partial(loopback.run, ranks, checks.contract))
    if not options.figures_only:
        step("overflow", lambda: loopback.run(4, checks.overflow))
        step("one rank is absent", lambda: loopback.run(3, checks.failing, "absent"))
        step("one rank fails before its launch", lambda: loopback.run(3, checks.failing, "fails"))
        for ranks in (2, 4, 8):
            work = partial(loopback.run, ranks, checks.stress, 10**6, options.stress_seconds)
            step(f"stress, {ranks} ranks", work)
    for tokens in (128, 4096, 8192):
        step(f"route {tokens} tokens, us", partial(route, replace(BIG, num_experts=256), tokens))
    for tokens in options.tokens:
        step(f"figures, {tokens} tokens", partial(figures, variants, tokens))
    return int(any(str(value).startswith("FAILED") for value in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
