"""What launches kernels: the arena, this rank's own words, and grids that leave multiprocessors free."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from moerl_kernels.errors import EpConfigError, EpUnavailable
from moerl_kernels.group import EpGroup
from moerl_kernels.nvlink.layout import EXCHANGE_CHUNK, WORD, Layout, Tiling
from moerl_kernels.nvlink.loopback import LoopbackGroup
from moerl_kernels.nvlink.memory import allocate

TIMEOUT = "MOERL_EP_TIMEOUT_S"  # seconds that a rank waits for a peer in a kernel
DEFAULT_TIMEOUT = 120.0
STATE_WORDS = 4


@dataclass(frozen=True, slots=True)
class Grid:
    """Programs of an operation, one per multiprocessor at most: they wait for peers, and must not keep NCCL out.

    wire, combine_wire: of those, how many begin by sending. Few fill the link, and the rest expand or add meanwhile.
    small: operations of at most so many items have every program send first, for latency.
    """

    programs: int
    wire: int
    combine_wire: int
    small: int = 256

    @classmethod
    def of(cls, group: EpGroup, spare: int = 16) -> Grid:
        """For the group's device: all multiprocessors but `spare`; a loopback shares them among its ranks."""
        if group.device.type != "cuda":
            return cls(1, 1, 1, 0)  # the interpreter runs one program after the other: one must do all the sending
        there = torch.cuda.get_device_properties(group.device).multi_processor_count
        sharers = group.size if isinstance(group, LoopbackGroup) else 1
        programs = max((there - spare) // sharers, 1)
        return cls(programs, max(min(48, programs // 2), 1), max(min(48, programs // 2), 1))


class Engine:
    """The kernels of one configuration on one rank, ready to launch."""

    def __init__(self, layout: Layout, group: EpGroup) -> None:
        self.layout = layout
        self.group = group
        self.grid = Grid.of(group)
        self._together("cannot be prepared", self._prepare)
        self._together("cannot share memory between its ranks", self._allocate)
        device = group.device
        self.table = self.memory.table()
        self.state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)
        self.scratch = torch.empty(
            self._most_programs() * layout.ranks * layout.local, dtype=torch.int32, device=device
        )
        slots = self.programs.blocks * layout.experts
        self.histogram = torch.empty(slots, dtype=torch.int32, device=device)
        self._rescue = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        at = layout.offsets["POISON"]
        self._poison = [view[at : at + WORD].view(torch.int32) for view in self.memory.views]
        self._read = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")

    def _most_programs(self) -> int:
        if self.group.device.type != "cuda":
            return 4
        return torch.cuda.get_device_properties(self.group.device).multi_processor_count * 2

    def _together(self, what: str, step: Callable[[], None]) -> None:
        """Do a step of create; what fails on one rank fails on all, with every rank's reason."""
        failure = ""
        try:
            step()
        except EpConfigError:
            raise  # follows from what all ranks have agreed on
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        failures = [f"rank {r}: {f}" for r, f in enumerate(self.group.gather_objects(failure)) if f]
        if failures:
            raise EpUnavailable(f"backend NVLink {what}: " + "; ".join(failures))

    def _prepare(self) -> None:
        """Compile and load everything before any rank can wait for another."""
        from moerl_kernels.nvlink.program import interpreted
        from moerl_kernels.nvlink.programs import Programs

        if self.group.device.type != "cuda" and not interpreted():
            raise EpConfigError("backend NVLink runs on GPUs; on the CPU only by Triton's interpreter")
        self.timed = self.group.device.type == "cuda"
        self.timeout = float(os.environ.get(TIMEOUT, DEFAULT_TIMEOUT))
        self.programs = Programs.of(self.layout, timed=self.timed)
        self.programs.prepare()

    def _allocate(self) -> None:
        self.memory = allocate(self.group, self.layout.offsets["END"])

    @property
    def limit(self) -> int:
        """The time-out in units of the kernels' clock: nanoseconds, or polls of the interpreter."""
        return int(self.timeout * (1e9 if self.timed else 1e3))

    def set_grid(self, **changes: Any) -> None:
        """Other numbers of programs, for measurements and tests."""
        self.grid = replace(self.grid, **changes)

    # --- operations ------------------------------------------------------------------------------------

    def route(self, groups: Tensor, codes: Tensor, counts: Tensor, fault: Tensor) -> None:
        """Place slots: groups [tokens, K] int64 -> codes [tokens, K], counts [E]; a strange value sets fault[1]."""
        programs, slots = self.programs, groups.numel()
        many = programs.blocks > 1
        if many:
            blocks = -(-slots // programs.rank_block)
            if blocks:
                programs.count.launch(blocks, groups, self.histogram, slots)
            width = programs.scan.constants["WIDTH"]
            programs.scan.launch(-(-self.layout.experts // width), self.histogram, counts, blocks)
        launches = -(-slots // programs.rank.constants["SUB"]) + (0 if many else 1)
        if launches:
            programs.rank.launch(launches, groups, self.histogram, codes, counts, fault, slots, self.group.rank + 1)

    def dispatch(self, mode: int, tokens: int, arguments: tuple[Any, ...]) -> None:
        """arguments: as the kernel's, without what the engine holds."""
        tiling = self.layout.bytes8 if self.layout.config.wire == "fp8" else self.layout.words
        grid, wire = self._grid_for(mode, tiling, self.grid.wire)
        *tensors, tokens, capacity, scale_row, scale_block = arguments
        self.programs.dispatch.launch(
            grid, *tensors, self.scratch, self.state, self.table, tokens, capacity, self.group.rank, wire, mode,
            scale_row, scale_block, self.limit,
        )  # fmt: skip

    def combine(self, mode: int, tokens: int, arguments: tuple[Any, ...]) -> None:
        """arguments: as the kernel's, without what the engine holds."""
        grid, wire = self._grid_for(mode, self.layout.sums, self.grid.combine_wire)
        *tensors, tokens = arguments
        self.programs.combine.launch(
            grid, *tensors, self.state, self.table, tokens, self.group.rank, wire, mode, self.limit
        )

    def _grid_for(self, mode: int, tiling: Tiling, wire: int) -> tuple[int, int]:
        """(programs, of which send first). By the configured size, so that graphs and eager calls are alike."""
        programs = self.grid.programs
        items = tiling.items(self.layout.tokens)
        if mode & 3 == 1:
            return wire, wire
        return programs, programs if items <= self.grid.small else wire

    def exchange(self, values: Tensor, *, to_each: bool = False) -> Tensor:
        """`values` of every rank, stacked [R, ...]; to_each: values[r] goes to rank r, and out[r] came from rank r."""
        size, shape = self.group.size, values.shape[1:] if to_each else values.shape
        if size == 1:
            return values.reshape(size, *shape)
        words = values.contiguous().view(-1).view(torch.int32)
        count = words.numel() // (size if to_each else 1)
        out = torch.empty((size, *shape), dtype=values.dtype, device=values.device)
        programs = max(1, min(self.grid.programs, -(-count // EXCHANGE_CHUNK)))
        self.programs.exchange.launch(
            programs, words, out.view(-1).view(torch.int32), self.state, self.table, count, count if to_each else 0,
            self.group.rank, self.limit,
        )  # fmt: skip
        return out

    # --- streams, poison, end --------------------------------------------------------------------------

    def mark(self) -> Any:
        """A point of the current stream."""
        return torch.cuda.current_stream().record_event() if self.timed else None

    def after(self, point: Any) -> None:
        """The current stream goes on after that point."""
        if point is not None:
            torch.cuda.current_stream().wait_event(point)

    def poison_code(self) -> int:
        """The code in this rank's arena, 0 if nobody has given up. Waits for the current stream."""
        if not self.timed:
            return int(self._poison[self.group.rank].item())
        self._read.copy_(self._poison[self.group.rank], non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return int(self._read.item())

    def give_up(self) -> None:
        """Poison every arena from the host, on a stream that waits for no kernel."""
        code = 1 + self.group.rank + self.group.rank * 16 + 4 * 256
        if self._rescue is None:
            for word in self._poison:
                word.fill_(code)
            return
        with torch.cuda.stream(self._rescue):
            for word in self._poison:
                word.fill_(code)
        self._rescue.synchronize()

    def close(self) -> None:
        """Wait until no rank uses the arenas any more, then let go of them."""
        if self.timed:
            torch.cuda.synchronize(self.group.device)
        if self.poison_code() == 0:
            self.group.barrier()
        self._poison.clear()
        self.memory.views.clear()
