"""Ranks as threads of one process on one device: the same kernels and the same words, without a second GPU.

It proves results and protocol. It proves nothing about the order of stores between GPUs, and its times mean nothing.
All ranks' programs must be resident together, because each waits for the others'; the backend sizes its grids so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moerl_kernels.errors import EpConfigError
from moerl_kernels.group import EpGroup

PATIENCE = 60.0  # seconds that a thread waits for the others on the host


class Meeting:
    """Where the threads meet: everyone leaves a value, everyone takes all of them."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """`value` of every rank, in rank order."""
        self.values[rank] = value
        self.barrier.wait(PATIENCE)
        out = list(self.values)
        self.barrier.wait(PATIENCE)
        return out


@dataclass(frozen=True, slots=True)
class LoopbackGroup(EpGroup):
    """A group of threads. Only what NVLink needs of a group: it moves its rows itself."""

    meeting: Meeting | None = None

    def gather_objects(self, value: Any) -> list[Any]:
        """`value` of every rank, in rank order. A collective."""
        return [value] if self.meeting is None else self.meeting.exchange(self.rank, value)

    def gather(self, value: Tensor) -> Tensor:
        """Equal-shaped tensors of all ranks, stacked. A collective that waits for the device."""
        if value.is_cuda:
            torch.cuda.current_stream().synchronize()
        return torch.stack(self.gather_objects(value))

    def any(self, flag: Tensor) -> Tensor:
        """Elementwise maximum over the ranks. A collective."""
        return self.gather(flag).amax(0)

    def barrier(self) -> None:
        """All ranks are here."""
        self.gather_objects(None)

    def exchange(
        self,
        value: Tensor,
        *,
        send: list[int] | None = None,
        receive: list[int] | None = None,
        async_op: bool = False,
    ) -> tuple[Tensor, dist.Work | None]:
        """Not here: raises EpConfigError."""
        raise EpConfigError("a loopback group carries backend NVLink only")


def reserve(device: torch.device, large: int = 1 << 30) -> None:
    """Let the current stream's allocator hold memory, so that it asks the driver for none later.

    The driver waits for running kernels when it allocates, and here the running kernel is another rank's that waits
    for this one. With a GPU for each rank nobody waits for the other's driver.
    """
    if device.type == "cuda":
        small = [torch.empty(1 << 19, dtype=torch.uint8, device=device) for _ in range(128)]
        more = torch.empty(large, dtype=torch.uint8, device=device)
        torch.cuda.current_stream().synchronize()
        del small, more


def run(size: int, work: Callable[..., Any], *args: Any, device: torch.device | str = "cuda") -> list[Any]:
    """`work(group, *args)` in `size` threads, each on a stream of its own; results in rank order.

    The first exception is raised once all threads have ended.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def body(rank: int) -> None:
        group = LoopbackGroup(rank, size, device, None, meeting)
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
                with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                    reserve(device)
                    group.barrier()
                    results[rank] = work(group, *args)
                    torch.cuda.current_stream().synchronize()
            else:
                results[rank] = work(group, *args)
        except BaseException as error:
            failures.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((f for f in failures if not isinstance(f, threading.BrokenBarrierError)), failures[0])
    return results
