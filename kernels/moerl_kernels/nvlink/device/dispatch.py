"""Dispatch: push each row once to every peer that holds one of its experts, expand what arrives to expert-major rows.

A program below `wire` pushes its items, then joins the others, which expand: own rows straight from `x`, a peer's from
the slots as their flags come in. Items are handed out by a counter, which decides who works, never where a row goes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from moerl_kernels.nvlink.device import sync
from moerl_kernels.nvlink.device.expand import expand
from moerl_kernels.nvlink.device.tiles import FP8_BLOCK, own_rows, quantise, ranks_of, slot_row, tile

OP = tl.constexpr(1)
NOTE_HEAD = tl.constexpr(4)  # words before the counts in a note; the first is the token count


@triton.jit
def dispatch(
    x, codes, weights, counts, rows, scales, row_weights, position, tokens_of, group_counts, group_starts, fault,
    scratch, state, table, tokens, capacity, me, wire, mode, scale_row, scale_block, limit,
    R: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, T: tl.constexpr,
    SHIFT: tl.constexpr, ALIGNMENT: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, FP8: tl.constexpr, VECTOR: tl.constexpr, TIMED: tl.constexpr, ITEMS: tl.constexpr,
    STRIDE: tl.constexpr, PER_SOURCE: tl.constexpr, NOTE_WORDS: tl.constexpr,
    POISON: tl.constexpr, CREDIT: tl.constexpr, HELLO: tl.constexpr, NOTE: tl.constexpr, FLAG: tl.constexpr,
    CODE: tl.constexpr, WEIGHT: tl.constexpr, SLOT: tl.constexpr, CODE_HALF: tl.constexpr,
    WEIGHT_HALF: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """x: [tokens, WORDS] int32 words, or floats [tokens, 4 * WORDS] with FP8. Names of sizes: layout.py.

    mode: SEND and RECEIVE run the halves. FRESH: positions follow from the peers' notes and codes, and are written to
    `position` [R, T, K]; otherwise they are read from there, and token counts from `tokens_of` [R]. WEIGHTED: router
    weights travel along.
    """
    pid = tl.program_id(0)
    fresh = (mode & sync.FRESH) != 0
    weighted = (mode & sync.WEIGHTED) != 0
    epoch = tl.load(state + sync.EPOCH) + 1
    parity = epoch & 1
    half = parity.to(tl.int64)
    tag = epoch | 1
    dead = sync.poisoned(table, me, POISON)
    if R > 1:
        if ((mode & sync.SEND) != 0) & (pid < wire) & (dead == 0):
            dead = sync.wait_credits(table, me, epoch, OP, limit, R, CREDIT, POISON, TIMED)
            if fresh & (pid == 0) & (dead == 0):
                _announce(counts, tokens, table, me, parity, tag, R, L, LP, NOTE, NOTE_WORDS, HELLO)
            if dead == 0:
                item = pid
                while item < tl.cdiv(tokens, ROWS) * PARTS:
                    _push(
                        x, codes, weights, table, tokens, me, half, item, fresh, weighted,
                        R, K, KP, L, T, SHIFT, WORDS, BLOCK, ROWS, PARTS, FP8, VECTOR, STRIDE,
                        CODE, WEIGHT, SLOT, CODE_HALF, WEIGHT_HALF, SLOT_HALF,
                    )  # fmt: skip
                    for i in tl.static_range(R - 1):
                        flags = sync.words(table, (me + 1 + i) % R, FLAG) + (parity * R + me) * ITEMS
                        sync.post(flags + item, tag)
                    item += wire
    if (mode & sync.RECEIVE) != 0:
        if fresh & (dead == 0):
            dead = _notes(table, me, parity, tag, limit, R, HELLO, POISON, TIMED)
            if dead == 0:
                _lay_out(
                    counts, tokens, tokens_of, group_counts, group_starts, fault, scratch, table, capacity, me, parity,
                    pid, R, L, LP, ALIGNMENT, PER_SOURCE, NOTE, NOTE_WORDS,
                )  # fmt: skip
        if dead == 0:
            most = tl.load(tokens_of)
            for rank in tl.static_range(1, R):
                most = tl.maximum(most, tl.load(tokens_of + rank))
            each = tl.cdiv(most, ROWS) * PARTS
            item = tl.atomic_add(state + sync.WORK, 1, sem="relaxed", scope="gpu")
            while item < each * R:
                source, lane, local = _turn(item, each, me, R)
                if local < tl.cdiv(tl.load(tokens_of + source), ROWS) * PARTS:
                    if source != me:
                        flag = sync.words(table, me, FLAG) + (parity * R + source) * ITEMS + local
                        code = sync.blame(me, source, OP)
                        dead = sync.wait(flag, tag, False, table, me, code, limit, R, POISON, TIMED)
                        tl.store(flag, 0)
                    if dead == 0:
                        expand(
                            x, codes, weights, rows, scales, row_weights, position, tokens_of, scratch, table,
                            capacity, me, scale_row, scale_block, half, pid, source, lane, local, fresh, weighted,
                            R, K, L, T, SHIFT, WORDS, BLOCK, ROWS, PARTS, FP8, VECTOR, STRIDE, CODE, WEIGHT,
                            SLOT, CODE_HALF, WEIGHT_HALF, SLOT_HALF,
                        )  # fmt: skip
                item = tl.atomic_add(state + sync.WORK, 1, sem="relaxed", scope="gpu")
                item = tl.where(dead == 0, item, each * R)
        sync.leave(state, table, me, epoch, parity, tl.num_programs(0), R, CREDIT, HELLO)


@triton.jit
def _notes(
    table, me, parity, tag, limit, R: tl.constexpr, HELLO: tl.constexpr, POISON: tl.constexpr, TIMED: tl.constexpr
):
    """Until every peer's note is here. Returns 0, or the poison that ended it."""
    dead = tl.full((), 0, tl.int32)
    for i in tl.static_range(R - 1):
        peer = (me + 1 + i) % R
        hello = sync.words(table, me, HELLO) + parity * R + peer
        code = sync.blame(me, peer, OP)
        dead = tl.maximum(dead, sync.wait(hello, tag, False, table, me, code, limit, R, POISON, TIMED))
    return dead


@triton.jit
def _turn(item, each, me, R: tl.constexpr):
    """(source, its lane, its item): own items first, which wait for nobody; then the peers' in turn, as they arrive."""
    lane = tl.full((), 0, tl.int32)
    local = item
    if R > 1:
        lane = tl.where(item < each, R - 1, (item - each) % (R - 1))
        local = tl.where(item < each, item, (item - each) // (R - 1))
    return (me + 1 + lane) % R, lane, local


@triton.jit
def _announce(
    counts, tokens, table, me, parity, tag, R: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, NOTE: tl.constexpr,
    NOTE_WORDS: tl.constexpr, HELLO: tl.constexpr,
):  # fmt: skip
    """Tell each peer this rank's token count, and its slots per expert of that peer."""
    expert = tl.arange(0, LP)
    for i in tl.static_range(R - 1):
        peer = (me + 1 + i) % R
        note = sync.words(table, peer, NOTE) + (parity * R + me) * NOTE_WORDS
        mine = tl.load(counts + peer * L + expert, mask=expert < L, other=0)
        tl.store(note + NOTE_HEAD + expert, mine, mask=expert < L)
        tl.store(note, tokens)
    for i in tl.static_range(R - 1):
        sync.post(sync.words(table, (me + 1 + i) % R, HELLO) + parity * R + me, tag)


@triton.jit
def _push(
    x, codes, weights, table, tokens, me, half, item, fresh, weighted,
    R: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, L: tl.constexpr, T: tl.constexpr, SHIFT: tl.constexpr,
    WORDS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, FP8: tl.constexpr,
    VECTOR: tl.constexpr, STRIDE: tl.constexpr, CODE: tl.constexpr, WEIGHT: tl.constexpr,
    SLOT: tl.constexpr,
    CODE_HALF: tl.constexpr, WEIGHT_HALF: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """The rows of one item into every peer's slots, each row once, and (with the first part) codes and weights."""
    token = (item // PARTS) * ROWS + tl.arange(0, ROWS)
    part = item % PARTS
    live = token < tokens
    if fresh & (part == 0):
        slot = tl.arange(0, KP)
        inside = live[:, None] & (slot[None, :] < K)
        place = token[:, None] * K + slot[None, :]
        code = tl.load(codes + place, mask=inside, other=-1)
        for i in tl.static_range(R - 1):
            base = tl.load(table + (me + 1 + i) % R)
            there = (base + CODE + half * CODE_HALF).to(tl.pointer_type(tl.int32)) + (R - 2 - i) * T * K
            tl.store(there + place, code, mask=inside)
        if weighted:
            weight = tl.load(weights + place, mask=inside, other=0.0)
            for i in tl.static_range(R - 1):
                base = tl.load(table + (me + 1 + i) % R)
                far = (base + WEIGHT + half * WEIGHT_HALF).to(weights.dtype) + (R - 2 - i) * T * K
                tl.store(far + place, weight, mask=inside)
    going = ranks_of(codes, token, live, K, L, SHIFT)
    STEPS: tl.constexpr = ((WORDS + BLOCK - 1) // BLOCK + PARTS - 1) // PARTS
    after = own_rows(x, token, live, part * STEPS, WORDS, BLOCK, FP8, VECTOR)
    for step in range(STEPS):
        block = part * STEPS + step
        raw = after  # the next step's rows are on their way while this one's are stored
        after = own_rows(x, token, live & (step + 1 < STEPS), block + 1, WORDS, BLOCK, FP8, VECTOR)
        if FP8:
            value, scale = quantise(raw, ROWS, BLOCK * 4)
        for i in tl.static_range(R - 1):
            peer = (me + 1 + i) % R
            need = ((going >> peer) & 1) != 0
            start = slot_row(table, peer, R - 2 - i, token, SLOT, T, STRIDE) + half * SLOT_HALF
            if FP8:
                column = block * (BLOCK * 4) + tl.arange(0, BLOCK * 4)
                bytes_ = tile(start.to(tl.pointer_type(tl.float8e4nv)), column, BLOCK * 4, VECTOR)
                tl.store(bytes_, value, mask=need[:, None] & (column < WORDS * 4)[None, :])
                group = block * (BLOCK * 4 // FP8_BLOCK) + tl.arange(0, BLOCK * 4 // FP8_BLOCK)
                far = (start + WORDS * 4).to(tl.pointer_type(tl.float32))[:, None] + group[None, :]
                tl.store(far, scale, mask=need[:, None] & (group < WORDS * 4 // FP8_BLOCK)[None, :])
            else:
                word = block * BLOCK + tl.arange(0, BLOCK)
                target = tile(start.to(tl.pointer_type(tl.int32)), word, BLOCK, VECTOR)
                tl.store(target, raw, mask=need[:, None] & (word < WORDS)[None, :])


@triton.jit
def _lay_out(
    counts, tokens, tokens_of, group_counts, group_starts, fault, scratch, table, capacity, me, parity, pid,
    R: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, ALIGNMENT: tl.constexpr, PER_SOURCE: tl.constexpr,
    NOTE: tl.constexpr, NOTE_WORDS: tl.constexpr,
):  # fmt: skip
    """From everybody's counts: first rows of each expert and, in this program's scratch [R, L], of each source in it.

    PER_SOURCE (layout compact): the one "expert" is this rank, and what is reported is counts and starts per source.

    Every program works it out for itself, which is cheaper than waiting for one that does.
    """
    expert = tl.arange(0, LP)
    mask = expert < L
    total = tl.zeros((LP,), tl.int32)
    for rank in tl.static_range(R):
        total += _counts_of(counts, table, rank, me, parity, expert, mask, R, L, NOTE, NOTE_WORDS)
    padded = (total + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
    start = tl.cumsum(padded, 0) - padded
    first = start
    mine = scratch + pid * (R * L)
    for rank in tl.static_range(R):
        tl.store(mine + rank * L + expert, first, mask=mask)
        theirs = _counts_of(counts, table, rank, me, parity, expert, mask, R, L, NOTE, NOTE_WORDS)
        if PER_SOURCE:
            tl.store(group_counts + rank + expert, theirs.to(tl.int64), mask=mask)
            tl.store(group_starts + rank + expert, first.to(tl.int64), mask=mask)
        first += theirs
        there = tl.load(sync.words(table, me, NOTE) + (parity * R + rank) * NOTE_WORDS)
        # All programs store the same values, so that each may read its own.
        tl.store(tokens_of + rank, tl.where(rank == me, tokens, there))
    if pid == 0:
        if not PER_SOURCE:
            tl.store(group_counts + expert, total.to(tl.int64), mask=mask)
            tl.store(group_starts + expert, start.to(tl.int64), mask=mask)
        tl.store(group_starts + (R if PER_SOURCE else L), tl.sum(padded).to(tl.int64))
        over = tl.sum(padded) - capacity
        if over > 0:
            tl.store(fault, tl.maximum(tl.load(fault), over.to(tl.int64)))
    tl.debug_barrier()


@triton.jit
def _counts_of(
    counts, table, rank, me, parity, expert, mask, R: tl.constexpr, L: tl.constexpr, NOTE: tl.constexpr,
    NOTE_WORDS: tl.constexpr,
):  # fmt: skip
    """[LP] slots of `rank` for each local expert: own ones from the routing, a peer's from its note."""
    note = sync.words(table, me, NOTE) + (parity * R + rank) * NOTE_WORDS + NOTE_HEAD
    own = tl.load(counts + me * L + expert, mask=mask & (rank == me), other=0)
    return own + tl.load(note + expert, mask=mask & (rank != me), other=0)
