"""One process per GPU of this host, for the benchmarks that need several."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

Work = Callable[[int, int, argparse.Namespace], None]
"""(rank, ranks, options); a function of a module, since ranks are spawned."""


def enough(program: str) -> int:
    """How many GPUs this host has; 0, after a word on stderr, when two are not there."""
    size = torch.cuda.device_count()
    if size < 2:
        print(f"{program}: this needs two GPUs or more on one host; found {size}", file=sys.stderr)
        return 0
    return size


def run(work: Work, size: int, options: argparse.Namespace) -> int:
    """`work` on every rank; 0, or the exit code of a rank that failed."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=work, args=(rank, size, options)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


def join(rank: int, size: int, port: int) -> torch.device:
    """Join the others over NCCL, without NVLink multicast; this rank's GPU."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"}
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
    return device
