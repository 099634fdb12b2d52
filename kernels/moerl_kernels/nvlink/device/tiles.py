"""Tiles of rows: several rows by a piece of their columns, 32 KB a step, in 16-byte stores.

One program step must keep about 32 KB in flight to fill an NVLink with few programs. The compiler cannot know that an
address loaded from the pointer table is a multiple of 16, nor does a hint on the loaded base reach the store: without
the hint on the final address it stores 2 or 4 bytes at a time (tests/kernels/test_ptx.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

FP8_BLOCK = tl.constexpr(128)
E4M3_MAX = tl.constexpr(448.0)


@triton.jit
def tile(starts, column, WIDTH: tl.constexpr, VECTOR: tl.constexpr):
    """Pointers [rows, WIDTH]: `starts` [rows] plus consecutive `column` [WIDTH].

    VECTOR: each row's piece starts at a multiple of 16 bytes. The hint sits on the addition itself: on an argument of a
    function it is lost when the function is inlined.
    """
    pointers = starts[:, None] + column[None, :]
    if VECTOR:
        pointers = tl.max_contiguous(tl.multiple_of(pointers, (16, 16)), (1, WIDTH))
    return pointers


@triton.jit
def quantise(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] -> (e4m3, [ROWS, COLUMNS / 128] fp32 scales), bit for bit moerl_kernels.fp8.quantise."""
    blocks = x.to(tl.float32).reshape(ROWS, COLUMNS // FP8_BLOCK, FP8_BLOCK)
    largest = tl.maximum(tl.max(tl.abs(blocks), axis=2), 1e-10)
    top = tl.full((ROWS, COLUMNS // FP8_BLOCK), E4M3_MAX, tl.float32)
    inverse = tl.div_rn(top, largest)
    values = (blocks * inverse[:, :, None]).to(tl.float8e4nv)
    return values.reshape(ROWS, COLUMNS), tl.div_rn(largest, top)


@triton.jit
def slot_row(table, rank, lane, token, SLOTS: tl.constexpr, T: tl.constexpr, STRIDE: tl.constexpr):
    """[rows] int64 byte addresses of slots in the arena of `rank`, of the peer whose lane it is, in half 0."""
    return tl.load(table + rank) + SLOTS + (lane * T + token).to(tl.int64) * STRIDE


@triton.jit
def ranks_of(codes, token, live, K: tl.constexpr, L: tl.constexpr, SHIFT: tl.constexpr):
    """[rows] int32: bit r is set if rank r holds an expert of the token."""
    bits = tl.zeros_like(token)
    for k in tl.static_range(K):
        code = tl.load(codes + token * K + k, mask=live, other=-1)
        bits |= tl.where(code >= 0, 1 << ((code >> SHIFT) // L), 0)
    return bits


@triton.jit
def own_rows(x, token, live, block, WORDS: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr, VECTOR: tl.constexpr):
    """One block of columns of x's rows, as int32 words, or as floats to be quantised."""
    LENGTH: tl.constexpr = WORDS * 4 if FP8 else WORDS
    WIDTH: tl.constexpr = BLOCK * 4 if FP8 else BLOCK
    column = block * WIDTH + tl.arange(0, WIDTH)
    read = tile(x + token.to(tl.int64) * LENGTH, column, WIDTH, VECTOR)
    return tl.load(read, mask=live[:, None] & (column < LENGTH)[None, :], other=0)
