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

    The last program counts, the others rank SUB slots each. BLOCKS is the pitch of what `count` left, 1 if it did
    not run. A slot that is no expert sets fault[1] to `blame`.
    """
    program = tl.program_id(0)
    if program == tl.num_programs(0) - 1:
        _count_all(topk, histogram, counts, slots, E, EP, BLOCK, BLOCKS)
    else:
        _rank(topk, histogram, codes, fault, slots, blame, program, E, BLOCK, BLOCKS, SUB, SHIFT)


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
        # Several blocks a step: one after the other, each load would wait for the one before.
        STEP: tl.constexpr = 16 if BLOCKS > 16 else BLOCKS
        found = tl.cdiv(slots, BLOCK)
        total = tl.zeros((EP,), tl.int32)
        for first in range(0, found, STEP):
            block = first + tl.arange(0, STEP)
            inside = (block < found)[:, None] & (bins < E)[None, :]
            total += tl.sum(tl.load(histogram + block[:, None] * E + bins[None, :], mask=inside, other=0), axis=0)
    tl.store(counts + bins, total, mask=bins < E)


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
        earlier = tl.arange(0, BLOCKS)
        safe = tl.where(known, chosen, 0)
        before = tl.load(histogram + earlier[None, :] * E + safe[:, None], mask=earlier[None, :] < block, other=0)
        place += tl.sum(before, axis=1)
    tl.store(codes + slot, tl.where(known, (chosen << SHIFT) | place, -1), mask=inside)
