"""Exchange: a few words from every rank to every rank, over the same words as the rows (checks, sizes, slot values)."""

from __future__ import annotations

import triton
import triton.language as tl

from moerl_kernels.nvlink.device import sync

OP = tl.constexpr(3)


@triton.jit
def exchange(
    values, out, state, table, count, pitch, me, limit,
    R: tl.constexpr, CHUNK: tl.constexpr, TIMED: tl.constexpr, ITEMS: tl.constexpr, POISON: tl.constexpr,
    CREDIT: tl.constexpr, HELLO: tl.constexpr, FLAG: tl.constexpr, SLOT: tl.constexpr, SLOT_HALF: tl.constexpr,
    LANE: tl.constexpr,
):  # fmt: skip
    """values[rank * pitch : + count] of this rank to out[me, :] of each rank; pitch 0 sends the same to all.

    int32 words; `count` at most ITEMS * CHUNK and LANE bytes. out: [R, count].
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = tl.load(state + sync.EPOCH) + 1
    parity = epoch & 1
    half = parity.to(tl.int64) * SLOT_HALF
    tag = epoch | 1
    dead = sync.poisoned(table, me, POISON)
    if dead == 0:
        dead = sync.wait_credits(table, me, epoch, OP, limit, R, CREDIT, POISON, TIMED)
    chunks = tl.cdiv(count, CHUNK)
    item = pid
    while (item < chunks) & (dead == 0):
        word = item * CHUNK + tl.arange(0, CHUNK)
        inside = word < count
        tl.store(out + me * count + word, tl.load(values + me * pitch + word, mask=inside, other=0), mask=inside)
        for i in tl.static_range(R - 1):
            peer = (me + 1 + i) % R
            far = (tl.load(table + peer) + SLOT + half + (R - 2 - i) * LANE).to(tl.pointer_type(tl.int32))
            tl.store(far + word, tl.load(values + peer * pitch + word, mask=inside, other=0), mask=inside)
            sync.post(sync.words(table, peer, FLAG) + (parity * R + me) * ITEMS + item, tag)
        item += programs
    item = pid
    while (item < chunks) & (dead == 0):
        word = item * CHUNK + tl.arange(0, CHUNK)
        inside = word < count
        for i in tl.static_range(R - 1):
            source = (me + 1 + i) % R
            flag = sync.words(table, me, FLAG) + (parity * R + source) * ITEMS + item
            code = sync.blame(me, source, OP)
            dead = tl.maximum(dead, sync.wait(flag, tag, False, table, me, code, limit, R, POISON, TIMED))
            tl.store(flag, 0)
            near = (tl.load(table + me) + SLOT + half + i * LANE).to(tl.pointer_type(tl.int32))
            tl.store(out + source * count + word, tl.load(near + word, mask=inside, other=0), mask=inside)
        item += programs
    sync.leave(state, table, me, epoch, parity, programs, R, CREDIT, HELLO)
