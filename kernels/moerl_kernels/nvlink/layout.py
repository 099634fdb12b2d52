"""Where everything lies in an arena, and in which pieces rows move: pure arithmetic over a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from moerl_kernels.config import FP8_BLOCK, EpConfig
from moerl_kernels.errors import EpConfigError

NOTE_HEAD = 4  # words before the counts in a note (device/dispatch.py)
EXCHANGE_CHUNK = 1024  # words of an exchange item
WORD = 4


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


def _power(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


class Shape(NamedTuple):
    """Of a step: so many rows by so many bytes of each. 512 bytes are one 16-byte access of each thread of a warp."""

    rows: int
    piece: int


# Measured on an H200 (docs/benchmarks.md). Rows of e4m3 are twice as long or more before they are quantised; a step of
# sums reads that many rows for every slot at once.
SHAPES = {"words": Shape(16, 2048), "bytes8": Shape(16, 1024), "sums": Shape(16, 512)}
FEW_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Tiling:
    """An item is `rows` tokens by a part of their columns; a step of it is `rows` x `block` elements."""

    elements: int  # of a row
    block: int
    rows: int
    parts: int
    vector: bool  # rows start at multiples of 16 bytes

    def items(self, tokens: int) -> int:
        """Items of so many tokens."""
        return -(-tokens // self.rows) * self.parts

    @classmethod
    def of(cls, shape: Shape, elements: int, width: int, tokens: int, *, least: int = 1) -> Tiling:
        """For rows of `elements` of `width` bytes, at most so many tokens, and blocks of at least `least` elements.

        Few tokens are split by columns too, so that there is work for all programs at once.
        """
        few = tokens <= FEW_TOKENS
        piece = max(shape.piece, 2048) if few else shape.piece
        whole = elements & -elements  # largest power of two that divides a row: no masks, no wasted lanes
        block = max(min(piece // width, whole if whole * width >= 512 else _power(elements)), least)
        rows = min(shape.rows, 8) if few else shape.rows
        parts = -(-elements // block) if few else 1
        return cls(elements, block, min(rows, _power(tokens)), parts, elements * width % 16 == 0)


@dataclass(frozen=True)
class Layout:
    """Byte offsets in the arena of one rank, and the derived sizes that kernels are compiled for.

    `experts` and `top_k` are what rows are grouped by: in layout compact the groups are the ranks themselves.
    """

    config: EpConfig
    ranks: int

    @property
    def compact(self) -> bool:
        return self.config.layout == "compact"

    @property
    def experts(self) -> int:
        return self.ranks if self.compact else self.config.num_experts

    @property
    def top_k(self) -> int:
        return self.ranks if self.compact else self.config.top_k

    @property
    def local(self) -> int:
        return self.experts // self.ranks

    @property
    def tokens(self) -> int:
        return self.config.max_tokens_per_rank

    @property
    def shift(self) -> int:
        """Bits for a slot's rank among its rank's slots of one expert."""
        return (self.tokens * self.top_k).bit_length()

    @property
    def weight_bytes(self) -> int:
        return 8 if self.config.dtype.itemsize == 8 else 4

    @cached_property
    def words(self) -> Tiling:
        """Rows in the configuration's type, as int32 words."""
        elements = self.config.hidden * self.config.dtype.itemsize // WORD
        return Tiling.of(SHAPES["words"], elements, WORD, self.tokens)

    @cached_property
    def bytes8(self) -> Tiling:
        """Rows of e4m3, as int32 words; a step quantises whole blocks of 128."""
        return Tiling.of(SHAPES["bytes8"], self.config.hidden // WORD, WORD, self.tokens, least=FP8_BLOCK // WORD)

    @cached_property
    def sums(self) -> Tiling:
        """Rows in the configuration's type, element by element."""
        return Tiling.of(SHAPES["sums"], self.config.hidden, self.config.dtype.itemsize, self.tokens)

    @property
    def items(self) -> int:
        """Flags per source: the most items that any operation has."""
        tilings = [self.words, self.sums] + ([self.bytes8] if self.config.wire == "fp8" else [])
        return _align(max(*(t.items(self.tokens) for t in tilings), -(-self.lane // WORD // EXCHANGE_CHUNK)), 4)

    @property
    def note_words(self) -> int:
        return _align(NOTE_HEAD + self.local, 4)

    @property
    def stride(self) -> int:
        """Bytes of a slot."""
        row = self.config.hidden * self.config.dtype.itemsize
        if self.config.wire == "fp8":
            row = max(row, self.config.hidden + self.config.hidden // FP8_BLOCK * 4)
        return _align(row, 16)

    @property
    def exchange_words(self) -> int:
        """Most words that one rank sends to one other in an exchange: slot values, or the sizes of exact mode."""
        slots = self.tokens * max(self.config.top_k, self.top_k) * 8 // WORD
        return max(slots, 2 * (2 + self.config.num_experts + self.ranks))

    @property
    def lane(self) -> int:
        """Bytes that one peer may write in one half."""
        return _align(max(self.tokens * self.stride, self.exchange_words * WORD), 128)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each part, their ends aligned to 128; `END` is the size of the arena."""
        lanes, ranks, slots = self.ranks - 1, self.ranks, self.tokens * self.top_k
        sizes = {
            "POISON": WORD,
            "CREDIT": ranks * WORD,
            "HELLO": 2 * ranks * WORD,
            "NOTE": 2 * ranks * self.note_words * WORD,
            "FLAG": 2 * ranks * self.items * WORD,
            "CODE": 2 * lanes * slots * WORD,
            "WEIGHT": 2 * lanes * slots * self.weight_bytes,
            "SLOT": 2 * lanes * self.lane,
        }
        out, at = {}, 0
        for name, size in sizes.items():
            out[name] = at
            at += _align(size, 128)
        return out | {"END": at}

    @property
    def half(self) -> dict[str, int]:
        """Bytes between the two halves of what is kept twice."""
        lanes, slots = self.ranks - 1, self.tokens * self.top_k
        return {
            "CODE_HALF": lanes * slots * WORD,
            "WEIGHT_HALF": lanes * slots * self.weight_bytes,
            "SLOT_HALF": lanes * self.lane,
        }

    def check(self) -> None:
        """Raise EpConfigError for what the kernels' 32-bit codes cannot hold."""
        if self.experts << self.shift > 2**31 - 1:
            raise EpConfigError(
                f"NVLink packs expert and place into 31 bits: num_experts {self.config.num_experts} with "
                f"max_tokens_per_rank {self.tokens} and top_k {self.config.top_k} do not fit; lower max_tokens_per_rank"
            )
