"""What the machine of a run can do by itself, measured in that run: figures mean little without it."""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist

from moerl_kernels import EpGroup


def link_speed(group: EpGroup) -> float:
    """GB/s that each rank sends while it receives as much: NCCL's send and receive of 512 MiB."""
    peer = (group.rank + 1) % group.size
    source = (group.rank - 1) % group.size
    out, into = (torch.empty(2**29, dtype=torch.uint8, device=group.device) for _ in range(2))
    times = []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        ops = [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, source)]
        for pending in dist.batch_isend_irecv(ops):
            pending.wait()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(round(2**29 / statistics.median(times[2:]) / 1e9, 1))


def copy_speed() -> float:
    """GB/s read and written by a copy of 1 GiB on one GPU."""
    a, b = (torch.randint(0, 9, (2**28,), dtype=torch.int32, device="cuda") for _ in range(2))
    times = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        a.copy_(b)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(round(2 * 2**30 / statistics.median(times[2:]) / 1e9, 1))


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
