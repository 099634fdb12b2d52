"""Where everything lies in an arena, and in which pieces rows move: pure arithmetic over a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from moerl_kernels.config import FP8_BLOCK, EpConfig
from moerl_kernels.errors import EpConfigError

STEP_BYTES = 32 * 1024  # what a program keeps in flight; with less, few programs cannot fill an NVLink
NOTE_HEAD = 4  # words before the counts in a note (device/dispatch.py)
EXCHANGE_CHUNK = 1024  # words of an exchange item
WORD = 4


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


def _power(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


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
    def of(cls, elements: int, width: int, tokens: int) -> Tiling:
        """Steps of 32 KB in pieces of at most 2 KB of a row; few tokens are also split by columns.

        elements, width: of a row, and bytes of each. tokens: at most.
        """
        most = 2048 // width
        whole = elements & -elements  # largest power of two that divides a row: no masks, no wasted lanes
        block = min(most, whole if whole * width >= 512 else _power(elements))
        rows = max(1, min(32, STEP_BYTES // (block * width), _power(tokens)))
        pieces = -(-elements // block)
        parts = 1
        if tokens <= 1024:
            rows = min(rows, 8)
            parts = pieces
        return cls(elements, block, rows, parts, elements * width % 16 == 0)


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
        return Tiling.of(self.config.hidden * self.config.dtype.itemsize // WORD, WORD, self.tokens)

    @cached_property
    def bytes8(self) -> Tiling:
        """Rows of e4m3, as int32 words; a step reads 128-element blocks, so that a block is at least that long."""
        tiling = Tiling.of(self.config.hidden // WORD, WORD, self.tokens)
        block = max(min(tiling.block, 256), FP8_BLOCK // WORD)
        pieces = -(-tiling.elements // block)
        # Before they are quantised, rows are twice as long or more: a step reads 32 KB and keeps 16.
        rows = max(1, min(16, STEP_BYTES // 2 // (block * WORD), _power(self.tokens), tiling.rows))
        return Tiling(tiling.elements, block, rows, pieces if tiling.parts > 1 else 1, tiling.vector)

    @cached_property
    def sums(self) -> Tiling:
        """Rows in the configuration's type, element by element."""
        width = self.config.dtype.itemsize
        tiling = Tiling.of(self.config.hidden, width, self.tokens)
        # A step reads that many rows for every slot at once.
        return Tiling(tiling.elements, tiling.block, min(tiling.rows, 8), tiling.parts, tiling.vector)

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
