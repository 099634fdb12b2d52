"""Words that ranks leave in each other's arenas: wait, post, poison, leave. docs/kernels.md has the protocol.

Everything is an atomic of Triton's, so that the interpreter runs it too; only the clock is inline assembly. On sm_90 a
poll is `atom.acquire.sys` and a post is `atom.release.sys`. Triton 3.6 puts no CTA barrier before a release atomic, so
the other warps' stores could pass the flag: every post has a barrier before it, every wait one after it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

# Words of a rank's own state, int32, written by its kernels alone.
EPOCH = tl.constexpr(0)  # last finished operation
DONE = tl.constexpr(1)  # programs that have left the running one
WORK = tl.constexpr(2)  # next item of the running one
STATE_WORDS = 4

# Bits of an operation's mode.
SEND = tl.constexpr(1)
RECEIVE = tl.constexpr(2)
FRESH = tl.constexpr(4)
WEIGHTED = tl.constexpr(8)


@triton.jit
def words(table, rank, offset):
    """The int32 words at byte `offset` of a rank's arena."""
    return (tl.load(table + rank) + offset).to(tl.pointer_type(tl.int32))


@triton.jit
def now(polls, TIMED: tl.constexpr):
    """Nanoseconds of the device's clock; where there is none (the interpreter) each poll counts as one."""
    time = polls
    if TIMED:
        time = globaltimer()
    return time


@triton.jit
def poison(table, code, R: tl.constexpr, POISON: tl.constexpr):
    """Tell every rank, this one included, that an operation is given up. The first code at each rank stays."""
    for rank in range(R):
        tl.atomic_cas(words(table, rank, POISON), 0, code, sem="release", scope="sys")


@triton.jit
def poisoned(table, me, POISON: tl.constexpr):
    """The code that somebody left here, 0 if nobody did. An atomic: one thread reads, so that all go the same way."""
    return tl.atomic_add(words(table, me, POISON), 0, sem="relaxed", scope="sys")


@triton.jit
def wait(
    word,
    want,
    AT_LEAST: tl.constexpr,
    table,
    me,
    code,
    limit,
    R: tl.constexpr,
    POISON: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Until *word equals `want` (AT_LEAST: is not before it, modulo 2^32). Returns 0, or the poison that ended it.

    `limit` is in now()'s units; after it this rank poisons all with `code`.
    """
    seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    missing = (seen - want) < 0 if AT_LEAST else seen != want
    dead = tl.full((), 0, tl.int32)
    if missing:
        polls = tl.full((), 0, tl.int64)
        start = now(polls, TIMED)
        while missing:
            polls += 1
            dead = poisoned(table, me, POISON)
            if (dead == 0) & (now(polls, TIMED) - start > limit):
                poison(table, code, R, POISON)
                dead = code
            seen = tl.atomic_add(word, 0, sem="acquire", scope="sys")
            missing = ((seen - want) < 0 if AT_LEAST else seen != want) & (dead == 0)
    tl.debug_barrier()
    return dead


@triton.jit
def post(word, value):
    """*word = value, after everything that this program has stored before."""
    tl.debug_barrier()
    tl.atomic_xchg(word, value, sem="release", scope="sys")


@triton.jit
def wait_credits(
    table, me, epoch, op, limit, R: tl.constexpr, CREDIT: tl.constexpr, POISON: tl.constexpr, TIMED: tl.constexpr
):
    """Until every peer has consumed what this rank sent two operations ago, which used the same half of the arena."""
    dead = tl.full((), 0, tl.int32)
    for i in tl.static_range(R - 1):
        peer = (me + 1 + i) % R
        code = blame(me, peer, op)
        word = words(table, me, CREDIT) + peer
        dead = tl.maximum(dead, wait(word, epoch - 2, True, table, me, code, limit, R, POISON, TIMED))
    return dead


@triton.jit
def blame(me, peer, op):
    """The poison code: who gave up, whom it waited for, in which operation. errors in Python unpack it."""
    return 1 + me + peer * 16 + op * 256


@triton.jit
def leave(state, table, me, epoch, parity, programs, R: tl.constexpr, CREDIT: tl.constexpr, HELLO: tl.constexpr):
    """The last program to leave clears the operation's words, advances the epoch, and gives the peers their credit.

    The counter orders every program's reads before the credit: a peer that sees it may overwrite what was read.
    """
    tl.debug_barrier()
    left = tl.atomic_add(state + DONE, 1, sem="acq_rel", scope="gpu")
    if left == programs - 1:
        tl.store(state + DONE, 0)
        tl.store(state + WORK, 0)
        hello = words(table, me, HELLO) + parity * R
        for rank in tl.static_range(R):
            tl.store(hello + rank, 0)
        tl.store(state + EPOCH, epoch)
        for i in tl.static_range(R - 1):
            post(words(table, (me + 1 + i) % R, CREDIT) + me, epoch)
