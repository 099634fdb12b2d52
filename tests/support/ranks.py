"""Several ranks on one machine: child processes of a warm parent, joined by gloo over a file."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 120  # seconds for all ranks together


def run(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """`work(*args)` on `size` ranks; the results in rank order. The first failure is raised with its traceback.

    `work` runs in a fork, so that torch need not be imported again; it may use torch.distributed's default group.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        results: Any = context.Queue()
        store = str(Path(folder) / "store")
        children = [context.Process(target=_child, args=(r, size, store, results, work, args)) for r in range(size)]
        for child in children:
            child.start()
        try:
            answers = dict(_collect(results, size))
        finally:
            for child in children:
                child.join(5)
                if child.is_alive():
                    child.kill()
                    child.join()
    for rank in range(size):
        ok, value = answers[rank]
        if not ok:
            raise AssertionError(f"rank {rank}:\n{value}")
    return [answers[rank][1] for rank in range(size)]


def _collect(results: Any, size: int) -> list[tuple[int, tuple[bool, Any]]]:
    answers = []
    for _ in range(size):
        answer = results.get(timeout=TIMEOUT)
        answers.append(answer)
        if not answer[1][0]:
            # The others may wait for this one for ever.
            answers += [(r, (True, None)) for r in range(size) if r not in {rank for rank, _ in answers}]
            break
    return answers


def _child(rank: int, size: int, store: str, results: Any, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        results.put((rank, (True, work(*args))))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, (False, traceback.format_exc())))
