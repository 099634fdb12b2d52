"""Combine: each rank adds a token's rows of its own experts and pushes one row to the token's owner, who adds those.

Sums are fp32 (fp64 for fp64): slots in order within a rank, then ranks in order. What a peer sends is rounded once to
the rows' type; the owner's own part is not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from moerl_kernels.nvlink.device import sync
from moerl_kernels.nvlink.device.tiles import ranks_of, slot_row, tile

OP = tl.constexpr(2)


@triton.jit
def combine(
    y, weights, position, tokens_of, codes, out, state, table, tokens, me, wire, mode, limit,
    R: tl.constexpr, K: tl.constexpr, L: tl.constexpr, T: tl.constexpr, SHIFT: tl.constexpr,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    VECTOR: tl.constexpr, TIMED: tl.constexpr, ITEMS: tl.constexpr,
    STRIDE: tl.constexpr, POISON: tl.constexpr, CREDIT: tl.constexpr, HELLO: tl.constexpr, FLAG: tl.constexpr,
    SLOT: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """y [N, HIDDEN], weights [N], position [R, T, K] rows of y or -1, codes [tokens, K] -> out [tokens, HIDDEN]."""
    pid = tl.program_id(0)
    weighted = (mode & sync.WEIGHTED) != 0
    epoch = tl.load(state + sync.EPOCH) + 1
    parity = epoch & 1
    half = parity.to(tl.int64)
    tag = epoch | 1
    dead = sync.poisoned(table, me, POISON)
    if R > 1:
        if ((mode & sync.SEND) != 0) & (pid < wire) & (dead == 0):
            dead = sync.wait_credits(table, me, epoch, OP, limit, R, CREDIT, POISON, TIMED)
            if dead == 0:
                most = tl.full((), 0, tl.int32)
                for i in tl.static_range(R - 1):
                    most = tl.maximum(most, tl.load(tokens_of + (me + 1 + i) % R))
                item = pid
                while item < tl.cdiv(most, ROWS) * PARTS * (R - 1):
                    lane = item % (R - 1)  # owners take turns
                    local = item // (R - 1)
                    owner = (me + 1 + lane) % R
                    theirs = tl.load(tokens_of + owner)
                    if local < tl.cdiv(theirs, ROWS) * PARTS:
                        _send(
                            y, weights, position, table, me, half, owner, lane, local, theirs, weighted,
                            R, K, T, HIDDEN, BLOCK, ROWS, PARTS, VECTOR, STRIDE, SLOT, SLOT_HALF,
                        )  # fmt: skip
                        sync.post(sync.words(table, owner, FLAG) + (parity * R + me) * ITEMS + local, tag)
                    item += wire
    if (mode & sync.RECEIVE) != 0:
        if dead == 0:
            each = tl.cdiv(tokens, ROWS) * PARTS
            item = tl.atomic_add(state + sync.WORK, 1, sem="relaxed", scope="gpu")
            while item < each:
                for i in tl.static_range(R - 1):
                    source = (me + 1 + i) % R
                    flag = sync.words(table, me, FLAG) + (parity * R + source) * ITEMS + item
                    code = sync.blame(me, source, OP)
                    dead = tl.maximum(dead, sync.wait(flag, tag, False, table, me, code, limit, R, POISON, TIMED))
                    tl.store(flag, 0)
                if dead == 0:
                    _receive(
                        y, weights, position, codes, out, table, tokens, me, half, item, weighted,
                        R, K, L, T, SHIFT, HIDDEN, BLOCK, ROWS, PARTS, VECTOR, STRIDE, SLOT, SLOT_HALF,
                    )  # fmt: skip
                item = tl.atomic_add(state + sync.WORK, 1, sem="relaxed", scope="gpu")
                item = tl.where(dead == 0, item, each)
        sync.leave(state, table, me, epoch, parity, tl.num_programs(0), R, CREDIT, HELLO)


@triton.jit
def _rows_and_weights(weights, places, token, live, weighted, K: tl.constexpr, WIDE: tl.constexpr):
    """(rows, weights) of each of the K slots of these tokens, [ROWS] each: -1 and 1 where nothing is.

    Read once per item and kept in registers, so that a step's row loads depend on nothing and all go out at once.
    """
    rows = ()
    factors = ()
    for k in tl.static_range(K):
        row = tl.load(places + token * K + k, mask=live, other=-1)
        rows = rows + (row,)
    for k in tl.static_range(K):
        factors = factors + (tl.load(weights + rows[k], mask=(rows[k] >= 0) & weighted, other=1.0).to(WIDE),)
    return rows, factors


@triton.jit
def _own_rows(y, rows, live, column, K: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """K times [ROWS, BLOCK]: this rank's rows of each token, 0 where there is none."""
    parts = ()
    for k in tl.static_range(K):
        read = tile(y + rows[k].to(tl.int64) * HIDDEN, column, BLOCK, VECTOR)
        there = (rows[k] >= 0) & live
        parts = parts + (tl.load(read, mask=there[:, None] & (column < HIDDEN)[None, :], other=0.0),)
    return parts


@triton.jit
def _own_sum(parts, factors, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """[ROWS, BLOCK] sum of the parts times their weights, in the order of the slots."""
    total = tl.zeros((ROWS, BLOCK), WIDE)
    for k in tl.static_range(K):
        total += parts[k].to(WIDE) * factors[k][:, None]
    return total


@triton.jit
def _peer_rows(
    table, me, half, token, coming, column, kind,
    R: tl.constexpr, T: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    STRIDE: tl.constexpr, SLOT: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """R times [ROWS, BLOCK]: what each rank has sent for these tokens, 0 where nothing and for this rank itself."""
    parts = ()
    for rank in tl.static_range(R):
        lane = tl.maximum((rank - me - 1 + R) % R, 0)
        there = (((coming >> rank) & 1) != 0) & (rank != me)
        start = slot_row(table, me, lane, token, SLOT, T, STRIDE) + half * SLOT_HALF
        read = tile(start.to(kind), column, BLOCK, VECTOR)
        parts = parts + (tl.load(read, mask=there[:, None] & (column < HIDDEN)[None, :], other=0.0),)
    return parts


@triton.jit
def _send(
    y, weights, position, table, me, half, owner, lane, item, theirs, weighted,
    R: tl.constexpr, K: tl.constexpr, T: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr, VECTOR: tl.constexpr, STRIDE: tl.constexpr, SLOT: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """The sums of one item's tokens into the owner's slots; nothing for tokens without an expert here."""
    WIDE: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    token = (item // PARTS) * ROWS + tl.arange(0, ROWS)
    rows, factors = _rows_and_weights(weights, position + owner * (T * K), token, token < theirs, weighted, K, WIDE)
    some = rows[0]
    for k in tl.static_range(1, K):
        some = tl.maximum(some, rows[k])
    start = slot_row(table, owner, R - 2 - lane, token, SLOT, T, STRIDE) + half * SLOT_HALF
    STEPS: tl.constexpr = ((HIDDEN + BLOCK - 1) // BLOCK + PARTS - 1) // PARTS
    first = (item % PARTS) * STEPS
    after = _own_rows(y, rows, True, first * BLOCK + tl.arange(0, BLOCK), K, HIDDEN, BLOCK, VECTOR)
    for step in range(STEPS):
        column = (first + step) * BLOCK + tl.arange(0, BLOCK)
        parts = after  # the next step's rows are on their way while this one's are added
        after = _own_rows(y, rows, step + 1 < STEPS, column + BLOCK, K, HIDDEN, BLOCK, VECTOR)
        total = _own_sum(parts, factors, K, ROWS, BLOCK, WIDE)
        target = tile(start.to(y.dtype), column, BLOCK, VECTOR)
        tl.store(target, total.to(y.dtype.element_ty), mask=(some >= 0)[:, None] & (column < HIDDEN)[None, :])


@triton.jit
def _receive(
    y, weights, position, codes, out, table, tokens, me, half, item, weighted,
    R: tl.constexpr, K: tl.constexpr, L: tl.constexpr, T: tl.constexpr, SHIFT: tl.constexpr, HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, VECTOR: tl.constexpr, STRIDE: tl.constexpr,
    SLOT: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """out of one item's tokens: what each rank has for them, in rank order."""
    WIDE: tl.constexpr = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    token = (item // PARTS) * ROWS + tl.arange(0, ROWS)
    live = token < tokens
    coming = ranks_of(codes, token, live, K, L, SHIFT)
    rows, factors = _rows_and_weights(weights, position + me * (T * K), token, live, weighted, K, WIDE)
    STEPS: tl.constexpr = ((HIDDEN + BLOCK - 1) // BLOCK + PARTS - 1) // PARTS
    first = (item % PARTS) * STEPS
    column = first * BLOCK + tl.arange(0, BLOCK)
    after = _own_rows(y, rows, True, column, K, HIDDEN, BLOCK, VECTOR)
    peers = _peer_rows(
        table, me, half, token, coming, column, y.dtype, R, T, HIDDEN, BLOCK, VECTOR, STRIDE, SLOT, SLOT_HALF
    )
    for step in range(STEPS):
        column = (first + step) * BLOCK + tl.arange(0, BLOCK)
        parts = after
        sent = peers
        more = step + 1 < STEPS
        after = _own_rows(y, rows, more, column + BLOCK, K, HIDDEN, BLOCK, VECTOR)
        peers = _peer_rows(
            table, me, half, token, tl.where(more, coming, 0), column + BLOCK, y.dtype,
            R, T, HIDDEN, BLOCK, VECTOR, STRIDE, SLOT, SLOT_HALF,
        )  # fmt: skip
        own = _own_sum(parts, factors, K, ROWS, BLOCK, WIDE)
        total = tl.zeros((ROWS, BLOCK), WIDE)
        for rank in tl.static_range(R):
            # Own rows have no slot: exactly one of the two is not zero, and the order of ranks is kept.
            total += sent[rank].to(WIDE) + tl.where(rank == me, own, 0.0)
        target = tile(out + token.to(tl.int64) * HIDDEN, column, BLOCK, VECTOR)
        tl.store(target, total.to(y.dtype.element_ty), mask=live[:, None] & (column < HIDDEN)[None, :])
