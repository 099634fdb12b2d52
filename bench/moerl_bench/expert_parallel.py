"""Dispatch and combine on GPUs: every backend, the same inputs, checked in the same run, then timed side by side.

One process per GPU of this host (`python -m moerl_bench.expert_parallel --json FILE`). A time is that of the whole
operation on the device (CUDA events), the maximum over the ranks of each iteration; then p50, p90 and p99 over the
iterations. Backends take turns, so that a drift of the machine meets all of them. Bytes are printed by two
definitions: *wire* is what a rank must send to the others if every token travels once per rank, *logical* also
counts what stays. Two GPUs say little about eight: with top-8 of 256 experts nearly every token goes to both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moerl_kernels import EpBackend, EpConfig, EpGroup, create, fp8
from moerl_kernels.config import SizeMode, Wire

HIDDEN, EXPERTS, TOP_K = 7168, 256, 8
WARM_UP = 5


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    tokens: int
    wire: Wire
    size_mode: SizeMode
    graph: bool
    skew: float  # popularity of expert e is proportional to (1 + e) ** -skew, experts shuffled


def routing(case: Case, rank: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(x bf16 [T, H], topk_idx [T, k], weights [T, k]) of a rank: every rank can make every other's."""
    generator = torch.Generator(device=device).manual_seed(17 * case.tokens + rank)
    shared = torch.Generator(device=device).manual_seed(7)
    popularity = -case.skew * torch.log(1.0 + torch.randperm(EXPERTS, generator=shared, device=device))
    noise = torch.rand(case.tokens, EXPERTS, generator=generator, device=device).clamp(1e-9, 1 - 1e-7)
    gumbel = -torch.log(-torch.log(noise))  # top-k of log p + Gumbel noise samples without replacement
    idx = (popularity + gumbel).topk(TOP_K).indices
    x = torch.randn(case.tokens, HIDDEN, generator=generator, device=device).bfloat16()
    weights = torch.rand(case.tokens, TOP_K, generator=generator, device=device)
    return x, idx, weights / weights.sum(-1, keepdim=True)


def expected_rows(case: Case, group: EpGroup) -> Tensor:
    """[N, H] expert-major rows of this rank by the contract's order, from everybody's inputs."""
    per_rank = EXPERTS // group.size
    xs, ids = zip(*((x, i) for x, i, _ in (routing(case, r, group.device) for r in range(group.size))), strict=True)
    x, idx = torch.cat(xs), torch.cat(ids).flatten()
    mine = (idx // per_rank == group.rank).nonzero().flatten()
    order = torch.sort(idx[mine], stable=True).indices
    return x[mine[order] // TOP_K]


def check(backend: EpBackend, case: Case) -> dict[str, float]:
    """Rows bitwise (bf16) or within e4m3's rounding; the weighted sum of untouched rows is x times the weights' sum."""
    x, idx, weights = routing(case, backend.group.rank, backend.group.device)
    got = backend.dispatch(x, idx, weights)
    want = expected_rows(case, backend.group)
    n = want.shape[0]
    if case.wire == "fp8":
        assert got.scales is not None
        rows = fp8.dequantise(got.rows[:n], got.scales[:n])
        error = float((rows - want).float().abs().max() / want.float().abs().max())
        if error > 1 / 16:
            raise AssertionError(f"{backend.name} {case}: fp8 rows are off by {error}")
    else:
        rows = got.rows
        if not torch.equal(rows[:n], want):
            raise AssertionError(f"{backend.name} {case}: rows differ from the contract's")
        error = 0.0
    out = backend.combine(
        rows if rows.shape[0] == got.handle.rows else _grown(rows, got.handle.rows), got.handle, weights=got.weights
    )
    exact = x.double() * weights.double().sum(-1, keepdim=True)
    off = float((out.double() - exact).norm() / exact.norm())
    if off > (0.06 if case.wire == "fp8" else 0.01):
        raise AssertionError(f"{backend.name} {case}: combine is off by {off}")
    backend.check()
    return {"rows": error, "combine": off}


def _grown(rows: Tensor, n: int) -> Tensor:
    out = rows.new_zeros(n, rows.shape[1])
    out[: rows.shape[0]] = rows
    return out


def operations(backend: EpBackend, case: Case) -> dict[str, Callable[[], Any]]:
    """The two operations to time, ready to run."""
    x, idx, weights = routing(case, backend.group.rank, backend.group.device)
    got = backend.dispatch(x, idx, weights)
    y = torch.randn(got.handle.rows, HIDDEN, device=x.device).bfloat16()
    combine = lambda: backend.combine(y, got.handle, weights=got.weights)  # noqa: E731
    ops: dict[str, Callable[[], Any]] = {"dispatch": lambda: backend.dispatch(x, idx, weights), "combine": combine}
    if not case.graph:
        return ops
    return {name: _captured(op) for name, op in ops.items()}


def _captured(op: Callable[[], Any]) -> Callable[[], Any]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            op()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = op()
    del kept  # the graph's memory pool keeps it
    return graph.replay


def measure(ops: dict[str, Callable[[], Any]], iterations: int, group: EpGroup) -> dict[str, list[float]]:
    """Microseconds of each operation and iteration, the maximum over ranks. `ops` take turns."""
    own: dict[str, list[float]] = {name: [] for name in ops}
    for i in range(WARM_UP + iterations):
        for name, op in ops.items():
            group.barrier()
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            op()
            end.record()
            end.synchronize()
            if i >= WARM_UP:
                own[name].append(start.elapsed_time(end) * 1000)
    out = {}
    for name, values in own.items():
        worst = torch.tensor(values, device=group.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        out[name] = worst.tolist()
    return out


def summary(times: list[float]) -> dict[str, float]:
    """p50, p90, p99 in microseconds."""
    ordered = sorted(times)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return {"p50": statistics.median(ordered), "p90": at(0.9), "p99": at(0.99)}  # type: ignore[no-untyped-call]


def grouped_mm_in_a_graph(device: torch.device) -> str:
    """Whether torch's grouped matrix multiplication captures into a CUDA graph and follows changed sizes on replay."""
    x = torch.randn(1024, 2048, device=device, dtype=torch.bfloat16)
    w = torch.randn(16, 2048, 1024, device=device, dtype=torch.bfloat16)
    ends = torch.arange(1, 17, device=device, dtype=torch.int32) * 32
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        torch.nn.functional.grouped_mm(x, w, offs=ends)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.nn.functional.grouped_mm(x, w, offs=ends)
    ends.copy_(torch.arange(1, 17, device=device, dtype=torch.int32) * 64)
    graph.replay()
    want = torch.nn.functional.grouped_mm(x, w, offs=ends)
    torch.cuda.synchronize()
    return "captures, and replays with the sizes of the moment" if torch.equal(out, want) else "replays wrongly"


def work(rank: int, size: int, options: argparse.Namespace) -> None:
    """One rank of the benchmark; rank 0 prints and writes."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port), "NCCL_NVLS_ENABLE": "0"}
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
    group = EpGroup.of(device=device)
    rows = []
    if rank == 0:
        print(
            f"{size} x {torch.cuda.get_device_name()}, torch {torch.__version__}, "
            f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}; grouped_mm {grouped_mm_in_a_graph(device)}"  # type: ignore[no-untyped-call]
        )
    for case in cases(options):
        backends = {}
        for name in ("NCCLAllGather", "NCCLAllToAll"):
            config = EpConfig(
                num_experts=EXPERTS,
                top_k=TOP_K,
                hidden=HIDDEN,
                max_tokens_per_rank=case.tokens,
                wire=case.wire,
                size_mode=case.size_mode,
            )
            backends[name] = create(name, config, group)
        errors = {name: check(backend, case) for name, backend in backends.items()}
        ops = {
            f"{name} {op}": run for name, backend in backends.items() for op, run in operations(backend, case).items()
        }
        torch.cuda.set_sync_debug_mode("error" if case.size_mode == "static" else "default")
        try:
            times = (
                measure(ops, options.iterations, group)
                if case.size_mode == "exact"
                else _measured(ops, options.iterations, group)
            )
        finally:
            torch.cuda.set_sync_debug_mode("default")
        row = asdict(case) | {"errors": errors, "times": {k: summary(v) for k, v in times.items()}, "raw": times}
        rows.append(row)
        if rank == 0:
            print(table(case, row["times"], size), flush=True)
    if rank == 0 and options.json:
        Path(options.json).write_text(json.dumps(rows))
    dist.destroy_process_group()


def _measured(ops: dict[str, Callable[[], Any]], iterations: int, group: EpGroup) -> dict[str, list[float]]:
    """Static sizes: the operations themselves may not read the host (checked once), the timing around them does."""
    for op in ops.values():
        op()
    torch.cuda.set_sync_debug_mode("default")
    return measure(ops, iterations, group)


def table(case: Case, times: dict[str, dict[str, float]], size: int) -> str:
    """One case for people."""
    share = case.tokens * (size - 1) / size * (1 - (1 - 1 / size) ** TOP_K) * size / max(size - 1, 1)
    per_row = HIDDEN + HIDDEN // 128 * 4 if case.wire == "fp8" else 2 * HIDDEN
    lines = [
        f"tokens {case.tokens} wire {case.wire} {case.size_mode}{' graph' if case.graph else ''} skew {case.skew}"
        f"  (a row is {per_row} B, about {share:.0f} rows a rank)"
    ]
    lines += [
        f"  {name:28} p50 {t['p50']:9.1f}  p90 {t['p90']:9.1f}  p99 {t['p99']:9.1f} us" for name, t in times.items()
    ]
    return "\n".join(lines)


def cases(options: argparse.Namespace) -> list[Case]:
    """What to measure."""
    out = []
    for tokens in options.tokens:
        wires: tuple[Wire, ...] = ("same", "fp8")
        for wire in wires:
            out.append(Case(tokens, wire, "exact", graph=False, skew=0.0))
            out.append(Case(tokens, wire, "static", graph=False, skew=0.0))
        out.append(Case(tokens, "same", "static", graph=True, skew=0.0))
        out.append(Case(tokens, "same", "exact", graph=False, skew=1.0))
    return out


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 4096, 8192], help="tokens a rank")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--json", help="file for the raw figures")
    parser.add_argument("--port", type=int, default=29533)
    options = parser.parse_args()
    size = torch.cuda.device_count()
    if size < 2:
        print("expert_parallel: this needs two GPUs or more on one host; found " + str(size), file=sys.stderr)
        return 2
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=work, args=(rank, size, options)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
