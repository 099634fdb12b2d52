"""Where each slot goes: its rank among the slots of its expert, stable, without atomics deciding any order.

Few slots take one kernel, `rank`. Many are cut into blocks: `count` counts each, `scan` adds them up, `rank` compares
only within a block.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count(topk, histogram, slots, E: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr):
    """histogram[block, E] = slots of each expert in this block of BLOCK slots. topk: [slots] int64."""
    block = tl.program_id(0)
    bins = tl.arange(0, EP)
    tl.store(histogram + block * E + bins, _histogram(topk, block * BLOCK, slots, E, EP, BLOCK), mask=bins < E)


@triton.jit
def scan(histogram, counts, blocks, E: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """histogram[block, E] becomes the slots of each expert in earlier blocks; counts: [E], those of all blocks."""
    expert = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    block = tl.arange(0, BLOCKS)
    place = block[:, None] * E + expert[None, :]
    inside = (block < blocks)[:, None] & (expert < E)[None, :]
    found = tl.load(histogram + place, mask=inside, other=0)
    tl.store(histogram + place, tl.cumsum(found, 0) - found, mask=inside)
    tl.store(counts + expert, tl.sum(found, axis=0), mask=expert < E)


@triton.jit
def rank(
    topk, histogram, codes, counts, fault, slots, blame,
    E: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, SUB: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """codes[slot] = expert << SHIFT | rank among this rank's slots of that expert; -1 for empty slots.

    Each program places SUB slots; with one block only, there is one more, which counts ([E]). A slot that is no
    expert sets fault[1] to `blame`.
    """
    program = tl.program_id(0)
    if BLOCKS == 1:
        if program == tl.num_programs(0) - 1:
            bins = tl.arange(0, EP)
            tl.store(counts + bins, _histogram(topk, 0, slots, E, EP, BLOCK), mask=bins < E)
    slot = program * SUB + tl.arange(0, SUB)
    inside = slot < slots
    chosen = tl.load(topk + slot, mask=inside, other=-1).to(tl.int32)
    known = (chosen >= 0) & (chosen < E)
    if tl.max((inside & (~known) & (chosen != -1)).to(tl.int32)) > 0:
        tl.atomic_max(fault + 1, tl.full((), 1, tl.int64) * blame)  # the largest rank wins: no order
    block = program * SUB // BLOCK
    other = block * BLOCK + tl.arange(0, BLOCK)
    theirs = tl.load(topk + other, mask=other < slots, other=-1).to(tl.int32)
    same = (chosen[:, None] == theirs[None, :]) & (other[None, :] < slot[:, None])
    place = tl.sum(same.to(tl.int32), axis=1)
    if BLOCKS > 1:
        place += tl.load(histogram + block * E + chosen, mask=known, other=0)
    tl.store(codes + slot, tl.where(known, (chosen << SHIFT) | place, -1), mask=inside)


@triton.jit
def _histogram(topk, first, slots, E: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr):
    """[EP] slots of each expert among BLOCK slots from `first` on."""
    slot = first + tl.arange(0, BLOCK)
    expert = tl.load(topk + slot, mask=slot < slots, other=-1).to(tl.int32)
    known = (expert >= 0) & (expert < E)
    return tl.histogram(tl.where(known, expert, 0), EP, mask=known)
