"""Where each slot goes: its rank among the slots of its expert, stable, without atomics deciding any order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count(topk, histogram, slots, E: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr):
    """histogram[block, E] = slots of each expert in this block of BLOCK slots. topk: [slots] int64."""
    block = tl.program_id(0)
    slot = block * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(topk + slot, mask=slot < slots, other=-1).to(tl.int32)
    known = (expert >= 0) & (expert < E)
    bins = tl.arange(0, EP)
    found = tl.histogram(tl.where(known, expert, 0), EP, mask=known)
    tl.store(histogram + block * E + bins, found, mask=bins < E)


@triton.jit
def rank(
    topk,
    histogram,
    codes,
    counts,
    fault,
    slots,
    blame,
    E: tl.constexpr,
    EP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    SUB: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """codes[slot] = expert << SHIFT | rank among this rank's slots of that expert; -1 for empty slots. counts: [E].

    The first program counts, which takes longest; the others rank SUB slots each. BLOCKS is the pitch of what `count`
    left, 1 if it did not run. A slot that is no expert sets fault[1] to `blame`.
    """
    program = tl.program_id(0)
    if program == 0:
        _count_all(topk, histogram, counts, slots, E, EP, BLOCK, BLOCKS)
    else:
        _rank(topk, histogram, codes, fault, slots, blame, program - 1, E, EP, BLOCK, BLOCKS, SUB, SHIFT)


@triton.jit
def _count_all(
    topk, histogram, counts, slots, E: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    bins = tl.arange(0, EP)
    if BLOCKS == 1:
        slot = tl.arange(0, BLOCK)
        expert = tl.load(topk + slot, mask=slot < slots, other=-1).to(tl.int32)
        known = (expert >= 0) & (expert < E)
        total = tl.histogram(tl.where(known, expert, 0), EP, mask=known)
    else:
        total = _before(histogram, tl.cdiv(slots, BLOCK), E, EP, BLOCKS)
    tl.store(counts + bins, total, mask=bins < E)


@triton.jit
def _before(histogram, blocks, E: tl.constexpr, EP: tl.constexpr, BLOCKS: tl.constexpr):
    """[EP] slots of each expert in the first `blocks` blocks.

    Many blocks a step, whole rows of them: one after the other, each load would wait for the one before, and reading
    only the experts that are asked for costs a sector for every number.
    """
    STEP: tl.constexpr = 32 if BLOCKS > 32 else BLOCKS
    bins = tl.arange(0, EP)
    total = tl.zeros((EP,), tl.int32)
    for first in range(0, blocks, STEP):
        block = first + tl.arange(0, STEP)
        inside = (block < blocks)[:, None] & (bins < E)[None, :]
        total += tl.sum(tl.load(histogram + block[:, None] * E + bins[None, :], mask=inside, other=0), axis=0)
    return total


@triton.jit
def _rank(
    topk,
    histogram,
    codes,
    fault,
    slots,
    blame,
    program,
    E: tl.constexpr,
    EP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    SUB: tl.constexpr,
    SHIFT: tl.constexpr,
):
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
        before = _before(histogram, block, E, EP, BLOCKS)
        place += tl.gather(before, tl.where(known, chosen, 0), 0)
    tl.store(codes + slot, tl.where(known, (chosen << SHIFT) | place, -1), mask=inside)
