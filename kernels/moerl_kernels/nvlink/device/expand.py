"""Expand: rows of one item to their expert-major places, each read once and stored as often as it has experts here."""

from __future__ import annotations

import triton
import triton.language as tl

from moerl_kernels.nvlink.device.tiles import FP8_BLOCK, own_rows, quantise, slot_row, tile


@triton.jit
def expand(
    x, codes, weights, rows, scales, row_weights, position, tokens_of, scratch, table, capacity, me, scale_row,
    scale_block, half, pid, source, lane, item, fresh, weighted,
    R: tl.constexpr, K: tl.constexpr, L: tl.constexpr, T: tl.constexpr, SHIFT: tl.constexpr, WORDS: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, FP8: tl.constexpr, VECTOR: tl.constexpr,
    STRIDE: tl.constexpr, CODE: tl.constexpr, WEIGHT: tl.constexpr, SLOT: tl.constexpr, CODE_HALF: tl.constexpr,
    WEIGHT_HALF: tl.constexpr, SLOT_HALF: tl.constexpr,
):  # fmt: skip
    """An own row comes from x, a peer's from its slot. fresh: places follow from codes, else they are known."""
    token = (item // PARTS) * ROWS + tl.arange(0, ROWS)
    part = item % PARTS
    live = token < tl.load(tokens_of + source)
    places = position + source * (T * K)
    firsts = scratch + pid * (R * L) + source * L
    pays = weighted & (part == 0)
    if source == me:
        _expand_own(
            x, codes, weights, rows, scales, row_weights, places, firsts, capacity, me, token, live, part, scale_row,
            scale_block, fresh, pays, K, L, SHIFT, WORDS, BLOCK, ROWS, PARTS, FP8, VECTOR,
        )  # fmt: skip
    elif R > 1:
        base = tl.load(table + me)
        codes = (base + CODE + half * CODE_HALF).to(tl.pointer_type(tl.int32)) + lane * (T * K)
        weights = (base + WEIGHT + half * WEIGHT_HALF).to(weights.dtype) + lane * (T * K)
        start = slot_row(table, me, lane, token, SLOT, T, STRIDE) + half * SLOT_HALF
        _expand_slot(
            start, codes, weights, rows, scales, row_weights, places, firsts, capacity, me, token, live, part,
            scale_row, scale_block, fresh, pays, K, L, SHIFT, WORDS, BLOCK, PARTS, FP8, VECTOR,
        )  # fmt: skip


@triton.jit
def _expand_own(
    x, codes, weights, rows, scales, row_weights, places, firsts, capacity, me, token, live, part, scale_row,
    scale_block, fresh, pays,
    K: tl.constexpr, L: tl.constexpr, SHIFT: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr, FP8: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Rows that this rank keeps."""
    STEPS: tl.constexpr = ((WORDS + BLOCK - 1) // BLOCK + PARTS - 1) // PARTS
    after = own_rows(x, token, live, part * STEPS, WORDS, BLOCK, FP8, VECTOR)
    to = _place(codes, weights, row_weights, places, firsts, capacity, me, token, live, fresh, pays, K, L, SHIFT)
    for step in range(STEPS):
        block = part * STEPS + step
        raw = after
        after = own_rows(x, token, live & (step + 1 < STEPS), block + 1, WORDS, BLOCK, FP8, VECTOR)
        if FP8:
            value, scale = quantise(raw, ROWS, BLOCK * 4)
            column = block * (BLOCK * 4) + tl.arange(0, BLOCK * 4)
            _scatter(value, rows.to(tl.pointer_type(tl.float8e4nv)), to, column, K, WORDS * 4, BLOCK * 4, VECTOR)
            group = block * (BLOCK * 4 // FP8_BLOCK) + tl.arange(0, BLOCK * 4 // FP8_BLOCK)
            _scatter_scales(scale, scales, to, group, group < WORDS * 4 // FP8_BLOCK, scale_row, scale_block, K)
        else:
            _scatter(raw, rows, to, block * BLOCK + tl.arange(0, BLOCK), K, WORDS, BLOCK, VECTOR)


@triton.jit
def _expand_slot(
    start, codes, weights, rows, scales, row_weights, places, firsts, capacity, me, token, live, part, scale_row,
    scale_block, fresh, pays,
    K: tl.constexpr, L: tl.constexpr, SHIFT: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, FP8: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Rows that a peer has put into its slots; start: [ROWS] addresses of the slots."""
    STEPS: tl.constexpr = ((WORDS + BLOCK - 1) // BLOCK + PARTS - 1) // PARTS
    after = _slot_rows(start, live, part * STEPS, WORDS, BLOCK, VECTOR)
    if FP8:
        GROUPS: tl.constexpr = STEPS * (BLOCK * 4 // FP8_BLOCK)
        one = tl.arange(0, triton.next_power_of_2(GROUPS))
        group = part * GROUPS + one
        inside = (one < GROUPS) & (group < WORDS * 4 // FP8_BLOCK)
        far = (start + WORDS * 4).to(tl.pointer_type(tl.float32))[:, None] + group[None, :]
        scale = tl.load(far, mask=live[:, None] & inside[None, :], other=0.0)
    to = _place(codes, weights, row_weights, places, firsts, capacity, me, token, live, fresh, pays, K, L, SHIFT)
    if FP8:
        _scatter_scales(scale, scales, to, group, inside, scale_row, scale_block, K)
    for step in range(STEPS):
        block = part * STEPS + step
        raw = after
        after = _slot_rows(start, live & (step + 1 < STEPS), block + 1, WORDS, BLOCK, VECTOR)
        _scatter(raw, rows, to, block * BLOCK + tl.arange(0, BLOCK), K, WORDS, BLOCK, VECTOR)


@triton.jit
def _place(
    codes, weights, row_weights, places, firsts, capacity, me, token, live, fresh, pays,
    K: tl.constexpr, L: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """K times [ROWS]: the row of each slot of these tokens, -1 if it is not ours or does not fit (EpOverflow).

    firsts: [L] first row of this source in each local expert. fresh: also kept in `places` [T, K]; pays: weights go to
    their rows. Held in registers by every thread that stores a piece of the row, so that the item's steps wait for
    nothing but rows; all loads of a kind go out together.
    """
    found = ()
    for k in tl.static_range(K):
        code = tl.load(codes + token * K + k, mask=live & fresh, other=-1)
        known = tl.load(places + token * K + k, mask=live & (fresh == 0), other=-1)
        found = found + ((code, known),)
    to = ()
    for k in tl.static_range(K):
        code, known = found[k]
        expert = (code >> SHIFT) - me * L
        ours = (code >= 0) & (expert >= 0) & (expert < L)
        row = tl.load(firsts + expert, mask=ours, other=0) + (code & ((1 << SHIFT) - 1))
        row = tl.where(ours & (row >= 0) & (row < capacity), row, -1)
        to = to + (tl.where(fresh, row, known),)
    for k in tl.static_range(K):
        tl.store(places + token * K + k, to[k], mask=live & fresh)
        pay = (to[k] >= 0) & pays
        weight = tl.load(weights + token * K + k, mask=pay, other=0.0)
        tl.store(row_weights + to[k], weight, mask=pay)
    return to


@triton.jit
def _slot_rows(start, live, block, WORDS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """One block of columns of a peer's rows, as words."""
    word = block * BLOCK + tl.arange(0, BLOCK)
    read = tile(start.to(tl.pointer_type(tl.int32)), word, BLOCK, VECTOR)
    return tl.load(read, mask=live[:, None] & (word < WORDS)[None, :], other=0)


@triton.jit
def _scatter(value, rows, to, column, K: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr):
    """[ROWS, WIDTH] elements to each of the rows' places; LENGTH: elements of a row."""
    for k in tl.static_range(K):
        target = tile(rows + to[k].to(tl.int64) * LENGTH, column, WIDTH, VECTOR)
        tl.store(target, value, mask=(to[k] >= 0)[:, None] & (column < LENGTH)[None, :])


@triton.jit
def _scatter_scales(scale, scales, to, group, inside, scale_row, scale_block, K: tl.constexpr):
    """[ROWS, GROUPS] scales to each of the rows' places, in either layout."""
    for k in tl.static_range(K):
        target = scales + (to[k] * scale_row)[:, None] + (group * scale_block)[None, :]
        tl.store(target, scale, mask=(to[k] >= 0)[:, None] & inside[None, :])
