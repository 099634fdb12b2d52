"""A model of the NVLink protocol that explores every interleaving of its ranks, blocks and delayed stores.

States are plain integers; `explore` visits all that can be reached, each once, and returns the first bad one with the
steps that lead to it: a read of stale, torn or overwritten data, a deadlock, or words that are not clean at the end.
Memory is as weak as PTX allows: a plain store lands at any time, in any order, until a release of the same block (after
its barrier) makes it land; a read that no acquire holds back may be done before the wait, and one that no release
follows may be done after the block has said that it is through. `without` takes one such element out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# What can be taken out. Each must be found out by some scenario, else it would not be needed.
ELEMENTS = (
    "send.release",  # S3: barrier and release between payload and flag
    "note.release",  # S2: the same between note and hello
    "receive.acquire",  # R2: acquire and barrier between flag and payload
    "note.acquire",  # R1: the same between hello and note
    "credit.wait",  # S1: peers have consumed what was in the slots
    "credit.last",  # X2: only the last block that leaves returns the credits
    "credit.release",  # X2: clears land before the credit does
    "done.release",  # X1: a block is through with its reads and clears before it says so
    "flag.clear",  # R2: a consumed flag is emptied
    "hello.clear",  # X2: so is a consumed hello
    "poison.check",  # a wait ends when a peer has given up
)

CREDIT, HELLO_SEND, FLAG_SEND, HELLO_WAIT, NOTE_READ, TAKE, WAIT, READ, LEAVE, LAST, RETURN, GONE = range(12)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. note: a dispatch along a new routing, which has hello and note.

    items: for a dispatch the flags that each rank sends to every peer; for a combine (`joint`) the flags that each
    rank gets from every peer, where item i waits for flag i of all of them.
    """

    items: tuple[int, ...]
    note: bool = False
    joint: bool = False

    def sent(self, source: int, target: int) -> int:
        """Flags from one rank to another."""
        return self.items[target if self.joint else source]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What runs: ranks, blocks of a grid (block 0 sends, then receives as the others do), operations in order.

    modulus: epochs wrap there, as 2^32 does. start: epoch before the first operation. halves: words of one payload.
    dies: (rank, operation) before whose launch the rank fails on its host and poisons all. late: any wait may time out.
    """

    ranks: int
    blocks: int
    ops: tuple[Op, ...]
    modulus: int = 8
    start: int = 6
    halves: int = 1
    dies: tuple[int, int] | None = None
    late: bool = False


@dataclass(slots=True)
class Found:
    """states: how many were visited. bad: what is wrong, empty if nothing is; steps: how it came to that."""

    states: int = 0
    bad: str = ""
    steps: list[str] = field(default_factory=list)


# A store that has not landed: (block, target rank, word, value). Blocks are numbered over all ranks.
Store = tuple[int, int, int, int]
State = tuple[tuple[int, ...], tuple[Store, ...]]


class Bad(Exception):
    """A read that returned something else than this operation's data."""


class Model:
    """The transitions of one scenario, with one element taken out or none."""

    def __init__(self, scenario: Scenario, without: str = "") -> None:
        assert without in ("", *ELEMENTS)
        self.s, self.without = scenario, without
        ranks, width = scenario.ranks, max(max(op.items) for op in scenario.ops) or 1
        self.width = width
        # Words of an arena: credits, poison, hello and note by parity and peer, flags and slots by item too.
        at = 0
        self.credit, at = at, at + ranks
        self.poison, at = at, at + 1
        self.hello, at = at, at + 2 * ranks
        self.note, at = at, at + 2 * ranks
        self.flag, at = at, at + 2 * ranks * width
        self.slot, at = at, at + 2 * ranks * width * scenario.halves
        self.arena = at
        # Local words of a rank: operation, work, done, then 4 of each block: step, counter, early read, late read.
        self.local = self.arena * ranks
        self.per_rank = 3 + 4 * scenario.blocks

    # --- words ---------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """Epochs, credits: start; everything else empty."""
        words = [0] * (self.local + self.per_rank * self.s.ranks)
        for rank in range(self.s.ranks):
            for peer in range(self.s.ranks):
                words[rank * self.arena + self.credit + peer] = self.s.start % self.s.modulus
            self._launch(words, rank)
        return tuple(words), ()

    def _launch(self, words: list[int], rank: int) -> None:
        base = self._rank(rank)
        words[base + 1] = words[base + 2] = 0
        for block in range(self.s.blocks):
            here = self._block(rank, block)
            words[here : here + 4] = [TAKE if block else CREDIT, 0, 0, 0]
            if block and words[base] < len(self.s.ops) and self.s.ops[words[base]].note:
                words[here] = HELLO_WAIT

    def _rank(self, rank: int) -> int:
        return self.local + rank * self.per_rank

    def _block(self, rank: int, block: int) -> int:
        return self._rank(rank) + 3 + 4 * block

    def _epoch(self, number: int) -> int:
        return (self.s.start + number + 1) % self.s.modulus

    def _slots(self, parity: int, source: int, item: int) -> range:
        first = self.slot + ((parity * self.s.ranks + source) * self.width + item) * self.s.halves
        return range(first, first + self.s.halves)

    def _flag_of(self, parity: int, source: int, item: int) -> int:
        return self.flag + (parity * self.s.ranks + source) * self.width + item

    def _peers(self, rank: int) -> list[int]:
        return [(rank + 1 + i) % self.s.ranks for i in range(self.s.ranks - 1)]

    # --- transitions ---------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Every next state with the words for its step. Bad if one of them reads what it must not."""
        words, pending = state
        for store in pending:
            rest = list(words)
            rest[store[1] * self.arena + store[2]] = store[3]
            yield "a store lands", (tuple(rest), tuple(x for x in pending if x is not store))
        for rank in range(self.s.ranks):
            number = words[self._rank(rank)]
            if number >= len(self.s.ops):
                continue
            if self.s.dies == (rank, number):
                yield f"rank {rank} dies", self._died(words, pending, rank)
                continue
            for block in range(self.s.blocks):
                yield from self._step(words, pending, rank, block, number)

    def finished(self, state: State) -> bool:
        """Every rank has ended its operations, or has given up."""
        return all(state[0][self._rank(rank)] >= len(self.s.ops) for rank in range(self.s.ranks))

    def unclean(self, state: State) -> str:
        """What is wrong with a finished state that nobody poisoned."""
        words = state[0]
        for rank in range(self.s.ranks):
            base = rank * self.arena
            if words[base + self.poison]:
                return ""
            if any(words[base + self.hello : base + self.note]) or any(words[base + self.flag : base + self.slot]):
                return f"rank {rank} is left with a hello or a flag that nobody emptied"
        return ""

    def _died(self, words: tuple[int, ...], pending: tuple[Store, ...], rank: int) -> State:
        out = list(words)
        for peer in range(self.s.ranks):
            out[peer * self.arena + self.poison] = 1
        out[self._rank(rank)] = len(self.s.ops)
        return tuple(out), pending

    def _step(
        self, words: tuple[int, ...], pending: tuple[Store, ...], rank: int, block: int, number: int
    ) -> Iterator[tuple[str, State]]:
        here, mine, op = self._block(rank, block), rank * self.arena, self.s.ops[number]
        step, count, early, late = words[here : here + 4]
        epoch = self._epoch(number)
        parity, tag = epoch & 1, epoch | 1
        name = f"rank {rank} block {block} op {number}"
        peers, gone = self._peers(rank), step == GONE

        def to(step: int, count: int = 0, **more: int) -> list[int]:
            out = list(words)
            out[here : here + 4] = [step, count, more.get("early", 0), more.get("late", late)]
            return out

        if late:  # a read that nothing held back is done now
            self._check(words, rank, late - 1, parity, number, name)
            out = list(words)
            out[here + 3] = 0
            yield f"{name} reads late", self._end(out, pending, rank)
        if gone:
            return
        poisoned = words[mine + self.poison] and self.without != "poison.check"
        waiting = step in (CREDIT, HELLO_WAIT, WAIT)
        if waiting and poisoned:
            yield f"{name} gives up", self._end(to(LEAVE, late=late), pending, rank)
            return
        if waiting and self.s.late and not words[mine + self.poison]:
            out = to(LEAVE)
            for peer in range(self.s.ranks):
                out[peer * self.arena + self.poison] = 1
            yield f"{name} times out and poisons all", self._end(out, pending, rank)

        if step == CREDIT:
            behind = [self._signed(words[mine + self.credit + q] - (epoch - 2)) < 0 for q in peers]
            if not any(behind) or self.without == "credit.wait":
                if op.note:
                    stores = [(self.note + parity * self.s.ranks + rank, number + 1)]
                    more = self._issue(pending, rank, block, peers, stores)
                    yield f"{name} stores its note", (tuple(to(HELLO_SEND)), more)
                else:
                    yield self._item(f"{name} has credit", list(words), pending, rank, block, op, parity, number, 0)
        elif step == HELLO_SEND:
            peer = peers[count]
            word = self.hello + parity * self.s.ranks + rank
            if self.without == "note.release":
                out, rest = to(step, count + 1), (*pending, (self._number(rank, block), peer, word, tag))
            else:
                out = to(step, count + 1)
                rest = self._land(out, pending, rank, block)
                out[peer * self.arena + word] = tag
            if count + 1 == len(peers):
                yield self._item(f"{name} says hello", out, rest, rank, block, op, parity, number, 0)
            else:
                yield f"{name} says hello to {peer}", (tuple(out), rest)
        elif step == FLAG_SEND:
            item, lane = divmod(count, len(peers))
            peer, out = peers[lane], to(step, count + 1)
            rest = pending
            if item < op.sent(rank, peer):
                word = self._flag_of(parity, rank, item)
                if self.without == "send.release":
                    rest = (*pending, (self._number(rank, block), peer, word, tag))
                else:
                    rest = self._land(out, pending, rank, block)
                    out[peer * self.arena + word] = tag
            if lane + 1 == len(peers):
                yield self._item(f"{name} flags item {item}", out, rest, rank, block, op, parity, number, item + 1)
            else:
                yield f"{name} flags item {item} at {peer}", (tuple(out), rest)
        elif step == HELLO_WAIT:
            heard = all(words[mine + self.hello + parity * self.s.ranks + q] == tag for q in peers)
            if self.without == "note.acquire" and not early:
                sound = all(words[mine + self.note + parity * self.s.ranks + q] == number + 1 for q in peers)
                yield f"{name} reads notes early", (tuple(to(step, early=2 if sound else 1)), pending)
            if heard and early == 1:
                raise Bad(f"{name} had read a note before it was there")
            if heard:
                yield f"{name} has heard all", (tuple(to(TAKE if early else NOTE_READ)), pending)
        elif step == NOTE_READ:
            for q in peers:
                found = words[mine + self.note + parity * self.s.ranks + q]
                if found != number + 1:
                    raise Bad(f"{name} reads rank {q}'s note of operation {found - 1}")
            yield f"{name} reads the notes", (tuple(to(TAKE)), pending)
        elif step == TAKE:
            # The counter decides who works, so taking and the next wait's first look are one step.
            out, work = to(WAIT), words[self._rank(rank) + 1]
            if work < len(self._wanted(rank, op)):
                out[self._rank(rank) + 1] = work + 1
                out[here + 1] = work
                yield f"{name} takes {work}", (tuple(out), pending)
            else:
                yield f"{name} finds no more", (tuple(to(LEAVE)), pending)
        elif step == WAIT:
            wanted = self._wanted(rank, op)[count]
            ready = all(words[mine + self._flag_of(parity, q, i)] == tag for q, i in wanted)
            if self.without == "receive.acquire" and not early:
                sound = all(self._value(words, rank, q, i, parity) == number + 1 for q, i in wanted)
                yield f"{name} reads {count} early", (tuple(to(step, count, early=2 if sound else 1)), pending)
            if ready and early == 1:
                raise Bad(f"{name} had read rows before they were there")
            if ready:
                rest = pending
                if self.without != "flag.clear":
                    clears = [(self._number(rank, block), rank, self._flag_of(parity, q, i), 0) for q, i in wanted]
                    rest = (*pending, *clears)
                yield f"{name} sees flags of {count}", (tuple(to(TAKE if early else READ, count)), rest)
        elif step == READ:
            if self.without == "done.release" and not late:
                yield f"{name} leaves its read for later", (tuple(to(TAKE, late=count + 1)), pending)
            self._check(words, rank, count, parity, number, name)
            yield f"{name} reads {count}", (tuple(to(TAKE)), pending)
        elif step == LEAVE:
            yield self._leave(name, to(GONE), pending, rank, block, op, parity)
        elif step == RETURN:
            out, rest = to(step, count + 1), pending
            if self.without != "credit.release":
                rest = self._land(out, pending, rank, block)
            out[peers[count] * self.arena + self.credit + rank] = epoch
            if count + 1 == len(peers):
                out[here : here + 2] = [GONE, 0]
            yield f"{name} returns credit to {peers[count]}", self._end(out, rest, rank)

    # --- parts of steps ------------------------------------------------------------------------------------

    def _item(
        self, name: str, out: list[int], pending: tuple[Store, ...], rank: int, block: int, op: Op, parity: int,
        number: int, item: int,
    ) -> tuple[str, State]:  # fmt: skip
        """Issue the stores of the next item, or turn to receiving when there is none."""
        peers, here = self._peers(rank), self._block(rank, block)
        to_whom = [q for q in peers if item < op.sent(rank, q)]
        if not to_whom:
            out[here : here + 2] = [HELLO_WAIT if op.note else TAKE, 0]
            return name, (tuple(out), pending)
        out[here : here + 2] = [FLAG_SEND, item * len(peers)]
        stores = [(word, number + 1) for word in self._slots(parity, rank, item)]
        return name, (tuple(out), self._issue(pending, rank, block, to_whom, stores))

    def _leave(
        self, name: str, out: list[int], pending: tuple[Store, ...], rank: int, block: int, op: Op, parity: int
    ) -> tuple[str, State]:
        base = self._rank(rank)
        rest = pending if self.without == "done.release" else self._land(out, pending, rank, block)
        out[base + 2] += 1
        last = out[base + 2] == self.s.blocks
        if self.without == "credit.last":
            returns, clears = out[base + 2] == 1, last
        else:
            returns = clears = last  # poisoned or not: nobody reads any more, so nothing can be overwritten
        if clears and op.note and self.without != "hello.clear":
            rest += tuple(
                (self._number(rank, block), rank, self.hello + parity * self.s.ranks + q, 0) for q in self._peers(rank)
            )
        if returns:
            out[self._block(rank, block)] = RETURN
        return f"{name} leaves", self._end(out, rest, rank)

    def _end(self, out: list[int], pending: tuple[Store, ...], rank: int) -> State:
        """When all blocks have gone: the kernel ends, all its stores have landed, the next one may start."""
        blocks = [self._block(rank, block) for block in range(self.s.blocks)]
        if any(out[here] != GONE or out[here + 3] for here in blocks):
            return tuple(out), pending
        for block in range(self.s.blocks):
            pending = self._land(out, pending, rank, block)
        dead = out[rank * self.arena + self.poison] and self.without != "poison.check"
        out[self._rank(rank)] = len(self.s.ops) if dead else out[self._rank(rank)] + 1
        self._launch(out, rank)
        return tuple(out), pending

    def _issue(
        self, pending: tuple[Store, ...], rank: int, block: int, peers: list[int], stores: list[tuple[int, int]]
    ) -> tuple[Store, ...]:
        number = self._number(rank, block)
        return (*pending, *((number, q, word, value) for q in peers for word, value in stores))

    def _land(self, out: list[int], pending: tuple[Store, ...], rank: int, block: int) -> tuple[Store, ...]:
        """All stores of a block land, in the order in which they were issued."""
        number = self._number(rank, block)
        for store in pending:
            if store[0] == number:
                out[store[1] * self.arena + store[2]] = store[3]
        return tuple(store for store in pending if store[0] != number)

    def _wanted(self, rank: int, op: Op) -> list[list[tuple[int, int]]]:
        """The items that this rank receives, each with the (source, item) flags that it waits for."""
        peers = self._peers(rank)
        if op.joint:
            return [[(q, i) for q in peers] for i in range(op.items[rank])]
        return [[(q, i)] for q in peers for i in range(op.sent(q, rank))]

    def _check(self, words: tuple[int, ...], rank: int, count: int, parity: int, number: int, name: str) -> None:
        for q, i in self._wanted(rank, self.s.ops[number])[count]:
            found = self._value(words, rank, q, i, parity)
            if found != number + 1:
                what = "torn rows" if found < 0 else f"rows of operation {found - 1}"
                raise Bad(f"{name} reads {what} from rank {q}, item {i}")

    def _value(self, words: tuple[int, ...], rank: int, source: int, item: int, parity: int) -> int:
        found = {words[rank * self.arena + word] for word in self._slots(parity, source, item)}
        return found.pop() if len(found) == 1 else -1

    def _signed(self, difference: int) -> int:
        half = self.s.modulus // 2
        return (difference + half) % self.s.modulus - half

    def _number(self, rank: int, block: int) -> int:
        return rank * self.s.blocks + block


def explore(scenario: Scenario, without: str = "") -> Found:
    """Visit every reachable state, depth first; stop at the first bad one."""
    model = Model(scenario, without)
    first = model.initial()
    came: dict[State, tuple[State, str] | None] = {first: None}
    stack, found = [first], Found()
    while stack:
        state = stack.pop()
        found.states += 1
        bad, moves = "", []
        try:
            moves = list(model.steps(state))
        except Bad as error:
            bad = str(error)
        if not bad and model.finished(state):
            bad = "" if state[1] else model.unclean(state)
        elif not bad and not moves:
            bad = "deadlock"
        if bad:
            found.bad = bad
            at = came[state]
            while at is not None:
                found.steps.insert(0, at[1])
                at = came[at[0]]
            return found
        for words, after in moves:
            # Pending stores of equal content and order are one state, whoever issued which first.
            after = (after[0], tuple(sorted(after[1]))) if _commute(after[1]) else after
            if after not in came:
                came[after] = (state, words)
                stack.append(after)
    return found


def _commute(pending: tuple[Store, ...]) -> bool:
    """Whether no two pending stores are for one word, so that their order is not part of the state."""
    return len({store[1:3] for store in pending}) == len(pending)
