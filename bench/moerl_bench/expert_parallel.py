"""Dispatch and combine on GPUs: every backend, the same inputs, checked in the same run, then timed side by side.

One process per GPU of this host (`python -m moerl_bench.expert_parallel --json FILE`). A time is that of the whole
operation on the device (CUDA events), the maximum over the ranks of each iteration; then p50, p90 and p99 over the
iterations. Ranks start together: a collective on the stream goes before the first event, and what waits on no host is
launched while it is held up, so that launch overhead is not in it (it is given apart). Backends take turns, so that a
drift of the machine meets all of them. Bytes are printed by two definitions: *wire* is what a rank must send to the
others if every token travels once per rank (the rows alone, scales included), *logical* also counts what stays. Two
GPUs say little about eight: with top-8 of 256 experts nearly every token goes to both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moerl_bench import gpu_ranks, nvlink_checks
from moerl_bench.gpu_facts import copy_speed, grouped_mm_in_a_graph, link_speed
from moerl_kernels import EpBackend, EpConfig, EpGroup, create, fp8
from moerl_kernels.config import SizeMode, Wire

HIDDEN, EXPERTS, TOP_K = 7168, 256, 8
WARM_UP = 5
NAMES = ("NCCLAllGather", "NCCLAllToAll", "NVLink")
LAYERS = 10  # in the graph of many small operations


Times = tuple[dict[str, list[float]], dict[str, list[float]]]  # (on the device, of the call)


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

    def replay(_inputs: Callable[[], Any] = op) -> None:  # what `op` holds must outlive the graph, which reads it
        graph.replay()

    return replay


def measure(ops: dict[str, Callable[[], Any]], iterations: int, group: EpGroup, *, exact: bool) -> Times:
    """Microseconds of each operation and iteration: on the device, the maximum over ranks; and of the call, here."""
    device: dict[str, list[float]] = {name: [] for name in ops}
    host: dict[str, list[float]] = {name: [] for name in ops}
    together = torch.zeros(1, device=group.device)
    for i in range(WARM_UP + iterations):
        for name, op in ops.items():
            torch.cuda.synchronize()
            group.barrier()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            if not exact:  # exact sizes read the host in the middle: nothing can be launched ahead
                nvlink_checks.sleep(2_000_000)
            dist.all_reduce(together)
            start.record()
            began = time.perf_counter()
            op()
            called = time.perf_counter() - began
            end.record()
            end.synchronize()
            if i >= WARM_UP:
                device[name].append(start.elapsed_time(end) * 1000)
                host[name].append(called * 1e6)
    out = {}
    for name, values in device.items():
        worst = torch.tensor(values, device=group.device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        out[name] = worst.tolist()
    return out, host


def summary(times: list[float]) -> dict[str, float]:
    """p50, p90, p99 in microseconds."""
    ordered = sorted(times)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]  # noqa: E731
    return {"p50": statistics.median(ordered), "p90": at(0.9), "p99": at(0.99)}  # type: ignore[no-untyped-call]


def configuration(case: Case) -> EpConfig:
    """What a case asks of a backend."""
    return EpConfig(
        num_experts=EXPERTS,
        top_k=TOP_K,
        hidden=HIDDEN,
        max_tokens_per_rank=case.tokens,
        wire=case.wire,
        size_mode=case.size_mode,
    )


def work(rank: int, size: int, options: argparse.Namespace) -> None:
    """One rank of the benchmark; rank 0 prints and writes."""
    device = gpu_ranks.join(rank, size, options.port)
    group = EpGroup.of(device=device)
    found: dict[str, Any] = {
        "gpus": f"{size} x {torch.cuda.get_device_name()}",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
        "groupedMm": grouped_mm_in_a_graph(device),
        "linkGBps": link_speed(group),
        "copyGBps": copy_speed(),
        "rows": [],
    }

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(found))

    say(json.dumps(found))
    for name, check_of in checks_of(options).items():
        began = time.monotonic()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            answers = group.gather_objects(check_of(group))
        found[name] = answers
        say(f"[{time.monotonic() - began:.1f} s] {name}: {answers}")
    for grid in options.grids:
        say(f"wire, combine wire, programs {grid}: {tried(group, *grid)}")
    for case in cases(options):
        row = one_case(case, group, options.iterations)
        found["rows"].append(row)
        say(table(case, row))
    if 128 in options.tokens:
        found["layers"] = {name: layers(name, group) for name in NAMES}
        say(f"128 tokens, dispatch + combine per layer in a graph of {LAYERS}: {found['layers']}")
    dist.destroy_process_group()


def one_case(case: Case, group: EpGroup, iterations: int) -> dict[str, Any]:
    """Check every backend, then time all."""
    backends = {name: create(name, configuration(case), group) for name in NAMES}
    errors = {name: check(backend, case) for name, backend in backends.items()}
    ops = {f"{name} {op}": run for name, backend in backends.items() for op, run in operations(backend, case).items()}
    if case.size_mode == "static":  # the operations themselves may not read the host; the timing around them does
        torch.cuda.set_sync_debug_mode("error")
        for op in ops.values():
            op()
        torch.cuda.set_sync_debug_mode("default")
    times, calls = measure(ops, iterations, group, exact=case.size_mode == "exact")
    for backend in backends.values():
        backend.check()
        backend.close()
    sent = wire_rows(case, group)
    row = asdict(case) | {"errors": errors, "wireRows": sent, "raw": times}
    row["times"] = {name: summary(values) for name, values in times.items()}
    row["call"] = {name: statistics.median(values) for name, values in calls.items()}
    row["wireGBps"] = {n: sent * row_bytes(case, n) / t["p50"] / 1000 for n, t in row["times"].items()}
    return row


def wire_rows(case: Case, group: EpGroup) -> int:
    """Rows that rank 0 must send to the others: one for each (token, other rank)."""
    _, idx, _ = routing(case, 0, group.device)
    owner = idx // (EXPERTS // group.size)
    return int(sum((owner == r).any(1).sum() for r in range(1, group.size)))


def row_bytes(case: Case, operation: str) -> int:
    """Bytes of a row on the wire; what combine returns is bf16 always."""
    return HIDDEN + HIDDEN // 128 * 4 if case.wire == "fp8" and operation.endswith("dispatch") else 2 * HIDDEN


def checks_of(options: argparse.Namespace) -> dict[str, Callable[[EpGroup], Any]]:
    """NVLink's contract, gradients, refusals and stress, on GPUs of their own."""
    if not options.stress_seconds:
        return {}
    return {
        "contract": nvlink_checks.contract,
        "gradients": nvlink_checks.gradients,
        "overflow": nvlink_checks.overflow,
        "absent": lambda group: nvlink_checks.failing(group, "absent"),
        "fails": lambda group: nvlink_checks.failing(group, "fails"),
        "stress": lambda group: nvlink_checks.stress(group, options.stress_rounds, options.stress_seconds),
    }


def tried(group: EpGroup, wire: int, combine_wire: int, programs: int) -> dict[str, float]:
    """p50 of NVLink at 8192 tokens with so many programs, in graphs."""
    out = {}
    for kind, name in (("fp8", "dispatch"), ("same", "dispatch"), ("same", "combine")):
        case = Case(8192, kind, "static", graph=True, skew=0.0)  # type: ignore[arg-type]
        backend = create("NVLink", configuration(case), group)
        backend._engine.set_grid(wire=wire, combine_wire=combine_wire, programs=programs)  # type: ignore[attr-defined]
        ops = {name: operations(backend, case)[name]}
        out[f"{name} {kind}"] = round(statistics.median(measure(ops, 10, group, exact=False)[0][name]), 1)
        backend.close()
    return out


def layers(name: str, group: EpGroup) -> dict[str, float]:
    """Microseconds per layer of dispatch and combine at 128 tokens, many in one graph."""
    case = Case(128, "same", "static", graph=False, skew=0.0)
    backend = create(name, configuration(case), group)
    x, idx, weights = routing(case, group.rank, group.device)

    def all_layers() -> None:
        for _ in range(LAYERS):
            got = backend.dispatch(x, idx, weights)
            backend.combine(got.rows, got.handle, weights=got.weights)

    times = measure({"layers": _captured(all_layers)}, 50, group, exact=False)[0]["layers"]
    backend.check()
    backend.close()
    return {key: value / LAYERS for key, value in summary(times).items()}


def table(case: Case, row: dict[str, Any]) -> str:
    """One case for people."""
    lines = [
        f"tokens {case.tokens} wire {case.wire} {case.size_mode}{' graph' if case.graph else ''} skew {case.skew}"
        f"  ({row['wireRows']} rows leave a rank)"
    ]
    lines += [
        f"  {name:24} p50 {t['p50']:8.1f}  p90 {t['p90']:8.1f}  p99 {t['p99']:8.1f} us"
        f"  wire {row['wireGBps'][name]:6.1f} GB/s  call {row['call'][name]:7.1f} us"
        for name, t in row["times"].items()
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
            out.append(Case(tokens, wire, "static", graph=True, skew=0.0))
        out.append(Case(tokens, "same", "exact", graph=False, skew=1.0))
    return out


def _grid(text: str) -> tuple[int, int, int]:
    wire, combine_wire, programs = (int(part) for part in text.split(":"))
    return wire, combine_wire, programs


def compile_all(ranks: int, tokens: list[int]) -> None:
    """NVLink's kernels into Triton's cache, over all cores: otherwise compiling is most of the time."""
    from moerl_bench.nvlink_one_gpu import compile_tasks

    wires: tuple[Wire, ...] = ("same", "fp8")
    sizes = sorted({*tokens, 8192})
    configs = [configuration(Case(t, w, "static", graph=False, skew=0.0)) for t in sizes for w in wires]
    compile_tasks([(config, ranks, None) for config in [*configs, *nvlink_checks.configurations(ranks)]])


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[128, 4096, 8192], help="tokens a rank")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--json", help="file for the raw figures")
    parser.add_argument("--stress-seconds", type=float, default=0, help="also check NVLink, and stress it so long")
    parser.add_argument("--stress-rounds", type=int, default=100_000)
    parser.add_argument(
        "--grids", type=_grid, nargs="*", default=[], help="wire:combine wire:programs, tried at 8192 tokens"
    )
    parser.add_argument("--port", type=int, default=29533)
    options = parser.parse_args()
    size = gpu_ranks.enough("expert_parallel")
    if not size:
        return 2
    compile_all(size, options.tokens)
    return gpu_ranks.run(work, size, options)


if __name__ == "__main__":
    raise SystemExit(main())
