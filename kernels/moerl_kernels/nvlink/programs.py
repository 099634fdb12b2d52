"""The kernels of one configuration: which there are, with which types and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moerl_kernels.nvlink.device.combine import combine
from moerl_kernels.nvlink.device.dispatch import dispatch
from moerl_kernels.nvlink.device.exchange import exchange
from moerl_kernels.nvlink.device.route import count, rank, scan
from moerl_kernels.nvlink.layout import EXCHANGE_CHUNK, Layout, Tiling, _power
from moerl_kernels.nvlink.program import POINTER, Program

SMALL = 2048  # up to so many slots are placed by one kernel, all of them one block
BLOCKS = 512  # of 128 slots or more otherwise
SCAN_WIDTH = 16  # experts that one program of `scan` adds up
WARPS = {"dispatch": 16, "combine": 16}


@dataclass(frozen=True, slots=True)
class Programs:
    """Everything that an operation launches."""

    count: Program
    scan: Program
    rank: Program
    dispatch: Program
    combine: Program
    exchange: Program
    rank_block: int
    blocks: int

    def all(self) -> dict[str, Program]:
        """By name."""
        return {name: getattr(self, name) for name in ("count", "scan", "rank", "dispatch", "combine", "exchange")}

    def prepare(self) -> None:
        """Compile and load all."""
        for program in self.all().values():
            program.prepare()

    @classmethod
    def of(cls, layout: Layout, *, timed: bool = True) -> Programs:
        """For one layout. timed: there is a device clock (not so with the interpreter)."""
        slots = layout.tokens * layout.top_k
        block = _power(slots) if slots <= SMALL else max(128, _power(-(-slots // BLOCKS)))
        blocks = _power(-(-slots // block))
        experts = {"E": layout.experts, "EP": _power(layout.experts)}
        each = min(32, block) if blocks == 1 else 128
        route = {**experts, "BLOCK": block, "BLOCKS": blocks, "SUB": each, "SHIFT": layout.shift}
        added = {"E": layout.experts, "BLOCKS": blocks, "WIDTH": SCAN_WIDTH}
        return cls(
            count=Program(count, ("*i64", "*i32", "i32"), {**experts, "BLOCK": block}, warps=4),
            scan=Program(scan, ("*i32", "*i32", "i32"), added, warps=16),
            rank=Program(rank, ("*i64", "*i32", "*i32", "*i32", "*i64", "i32", "i32"), route),
            dispatch=_dispatch(layout, timed),
            combine=_combine(layout, timed),
            exchange=_exchange(layout, timed),
            rank_block=block,
            blocks=blocks,
        )


def _common(layout: Layout, timed: bool) -> dict[str, Any]:
    at = layout.offsets
    return {
        "R": layout.ranks,
        "TIMED": timed,
        "ITEMS": layout.items,
        **{name: at[name] for name in ("POISON", "CREDIT", "HELLO", "FLAG", "SLOT")},
        "SLOT_HALF": layout.half["SLOT_HALF"],
    }


def _routes(layout: Layout) -> dict[str, Any]:
    return {
        "K": layout.top_k,
        "L": layout.local,
        "T": layout.tokens,
        "SHIFT": layout.shift,
        "STRIDE": layout.stride,
    }


def _pieces(tiling: Tiling) -> dict[str, Any]:
    return {
        "BLOCK": tiling.block,
        "ROWS": tiling.rows,
        "PARTS": tiling.parts,
        "VECTOR": tiling.vector,
    }


def _weights(layout: Layout) -> str:
    return "*fp64" if layout.weight_bytes == 8 else "*fp32"


def _dispatch(layout: Layout, timed: bool) -> Program:
    fp8 = layout.config.wire == "fp8"
    tiling = layout.bytes8 if fp8 else layout.words
    x = POINTER[layout.config.dtype] if fp8 else "*i32"
    w = _weights(layout)
    pointers = (
        x,
        "*i32",
        w,
        "*i32",
        "*i32",
        "*fp32",
        w,
        "*i32",
        "*i32",
        "*i64",
        "*i64",
        "*i64",
        "*i32",
        "*i32",
        "*i64",
    )
    numbers = ("i32",) * 7 + ("i64",)
    constants = {
        **_common(layout, timed),
        **_routes(layout),
        **_pieces(tiling),
        "KP": _power(layout.top_k),
        "LP": _power(layout.local),
        "ALIGNMENT": layout.config.alignment,
        "WORDS": tiling.elements,
        "FP8": fp8,
        "PER_SOURCE": layout.compact,
        "NOTE_WORDS": layout.note_words,
        **{name: layout.offsets[name] for name in ("NOTE", "CODE", "WEIGHT")},
        **{name: layout.half[name] for name in ("CODE_HALF", "WEIGHT_HALF")},
    }
    return Program(dispatch, pointers + numbers, constants, warps=WARPS["dispatch"])


def _combine(layout: Layout, timed: bool) -> Program:
    rows = POINTER[layout.config.dtype]
    types = (rows, _weights(layout), "*i32", "*i32", "*i32", rows, "*i32", "*i64", "i32", "i32", "i32", "i32", "i64")
    constants = {
        **_common(layout, timed),
        **_routes(layout),
        **_pieces(layout.sums),
        "HIDDEN": layout.config.hidden,
    }
    return Program(combine, types, constants, warps=WARPS["combine"])


def _exchange(layout: Layout, timed: bool) -> Program:
    types = ("*i32", "*i32", "*i32", "*i64", "i32", "i32", "i32", "i64")
    return Program(exchange, types, {**_common(layout, timed), "CHUNK": EXCHANGE_CHUNK, "LANE": layout.lane}, warps=4)
