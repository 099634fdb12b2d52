"""The buffer against a model of it: any order of what workers, zombies and restarted trainers may do.

After every step the real ledger must equal the model's, balance, and survive a recount; nothing may be trained twice in
one lineage of checkpoints, and nothing may vanish.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.model import CommitResult, FencedAttempt, Lease, Ledger, StepSettled
from moerl_runtime.buffer.records import Sample, SampleGroup, token_ids
from support.redis import RedisServer

BATCH, STALENESS, SAMPLES, TOKENS = 3, 1, 2, 2
OPEN = ("todo", "leased", "ready")
CLOSED = ("consumed", "stale", "filtered", "failed", "cancelled")
T = TypeVar("T")


@dataclass
class Group:
    """What the model knows of one group."""

    state: str = "todo"
    epoch: int = 0
    oldest: int = 0
    seq: int = 0
    failures: int = 0
    expired: bool = False


@dataclass
class Trainer:
    """The trainer's side: the current lineage, and what is durable."""

    attempt: int = 1
    step: int = 0
    version: int = 1
    durable: int = 0
    settled: int = 0
    finished: bool = False
    lineage: dict[int, list[int]] = field(default_factory=dict)


class BufferMachine(RuleBasedStateMachine):
    """Drives a real server and the model side by side."""

    server: ClassVar[RedisServer]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.buffer = self.run(Buffer.connect(self.server.url, self.server.password, timeout_seconds=5))
        self.run(self.buffer.redis.flushall())
        self.groups: dict[int, Group] = {}
        self.leases: list[tuple[Lease, int]] = []
        self.trainer = Trainer()
        self.admitted = 0
        self.returned = 0
        self.run(self.buffer.begin(1, 0))
        assert self.run(self.buffer.set_head(1, 1, "v1", step=0))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Await one call."""
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.buffer.close())
        self.loop.close()

    def of(self, state: str) -> list[int]:
        """Uids in a state, in order of admission where there is one."""
        return sorted((u for u, g in self.groups.items() if g.state == state), key=lambda u: (self.groups[u].seq, u))

    # ---- workers

    @rule(count=st.integers(1, 8))
    def issue(self, count: int) -> None:
        self._issue(count)

    def _issue(self, count: int) -> None:
        issued = self.run(self.buffer.issue(count, batch=BATCH, max_staleness=STALENESS))
        assert not (issued and self.trainer.finished)
        for _ in range(issued):
            self.groups[len(self.groups) + 1] = Group()
        if issued:
            assert sum(len(self.of(s)) for s in OPEN) <= (STALENESS + 1) * BATCH

    @rule(count=st.integers(1, 4), behind=st.integers(0, 2))
    def lease(self, count: int, behind: int) -> None:
        self._lease(count, behind)

    def _lease(self, count: int, behind: int) -> None:
        version = max(0, self.trainer.version - behind)
        answer = self.run(
            self.buffer.lease("w", count, ttl_seconds=600, version=version, batch=BATCH, max_staleness=STALENESS)
        )
        assert answer.finished == self.trainer.finished
        for one in answer.leases:
            group = self.groups[one.uid]
            expired = [u for u in self.of("leased") if self.groups[u].expired]
            assert one.uid in expired if expired else one.uid == min(self.of("todo"))
            assert one.epoch == group.epoch + 1
            assert one.prompt_index == one.uid - 1
            assert one.min_version <= version
            group.state, group.epoch, group.expired = "leased", one.epoch, False
            self.leases.append((one, version))
        current = behind == 0 and len(answer.leases) < count and not self.trainer.finished
        if current and len(self.of("ready")) < BATCH:
            # A worker on HEAD is never refused while less than a batch is ready: no deadlock.
            assert not self.of("todo")
            assert not any(self.groups[u].expired for u in self.of("leased"))

    @rule(behind=st.integers(0, 1), spare=st.integers(0, 2))
    def worker_fills(self, behind: int, spare: int) -> None:
        """Does in one go what the small rules rarely do in this order; `spare` leases stay without a commit."""
        self.healthy_worker(behind=behind, spare=spare)

    def healthy_worker(self, *, behind: int, spare: int) -> None:
        self._issue(8)
        before = len(self.leases)
        self._lease(8, behind)
        for lease, version in self.leases[before + spare :]:
            self._commit(lease, version, usable=2)

    def owns(self, lease: Lease) -> bool:
        """Whether the model says that this lease is still its worker's."""
        group = self.groups[lease.uid]
        return group.state == "leased" and group.epoch == lease.epoch

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), usable=st.sampled_from([2, 2, 2, 2, 1]))
    def commit(self, data: st.DataObject, usable: int) -> None:
        lease, version = data.draw(st.sampled_from(self.leases))
        self._commit(lease, version, usable=usable)

    def _commit(self, lease: Lease, version: int, *, usable: int) -> None:
        group = self.groups[lease.uid]
        if self.owns(lease):
            expected = CommitResult.ADMITTED if usable >= 2 else CommitResult.FILTERED
        elif group.state in CLOSED:
            expected = CommitResult.CLOSED
        elif group.epoch == lease.epoch and group.state in ("ready", "taken"):
            expected = CommitResult.DUPLICATE
        else:
            expected = CommitResult.FENCED
        assert self.run(self.buffer.commit(lease, _record(lease, version, usable))) is expected
        if expected is CommitResult.ADMITTED:
            self.admitted += 1
            group.state, group.oldest, group.seq = "ready", version, self.admitted
        elif expected is CommitResult.FILTERED:
            group.state = "filtered"

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease, _ = data.draw(st.sampled_from(self.leases))
        owned, group = self.owns(lease), self.groups[lease.uid]
        committed = group.epoch == lease.epoch and group.state in ("ready", "taken")
        assert self.run(self.buffer.renew([lease], ttl_seconds=600)) == [owned or committed]
        if owned:
            self.groups[lease.uid].expired = False

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _ = data.draw(st.sampled_from(self.leases))
        owned = self.owns(lease)
        assert self.run(self.buffer.release(lease)) == owned
        if owned:
            self.groups[lease.uid].state, self.groups[lease.uid].expired = "todo", False

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        lease, _ = data.draw(st.sampled_from(self.leases))
        owned, group = self.owns(lease), self.groups[lease.uid]
        assert self.run(self.buffer.fail(lease, reason="bad", max_failures=2)) == owned
        if owned:
            group.failures += 1
            group.state, group.expired = ("failed" if group.failures >= 2 else "todo"), False

    @precondition(lambda self: self.of("leased"))
    @rule(data=st.data())
    def worker_vanishes(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self.of("leased")))
        self.groups[uid].expired = True
        self.run(self.buffer.redis.zadd("moerl:leases", {str(uid): 1}, xx=True))

    # ---- trainer

    def take(self, step: int, attempt: int) -> list[SampleGroup] | None:
        """Ask for a batch."""
        return self.run(
            self.buffer.take(step, attempt, batch=BATCH, version=self.trainer.version, max_staleness=STALENESS)
        )

    @precondition(lambda self: not self.trainer.finished)
    @rule(publish=st.booleans())
    def train(self, publish: bool) -> None:
        self._train()
        if publish:
            self.publish()

    def _train(self) -> None:
        t = self.trainer
        groups = self.take(t.step + 1, t.attempt)
        for uid in self.of("ready"):
            if self.groups[uid].oldest < t.version - STALENESS:
                self.groups[uid].state = "stale"
        ready = self.of("ready")
        if groups is None:
            assert len(ready) < BATCH
            return
        uids = [g.uid for g in groups]
        assert uids == ready[:BATCH], "oldest admitted first"
        trained = {uid for earlier in t.lineage.values() for uid in earlier}
        assert not trained & set(uids), "trained twice in one lineage"
        for group in groups:
            assert group.oldest_version >= t.version - STALENESS
            assert list(group.samples[0].output_ids) == [group.uid, group.epoch]
            self.groups[group.uid].state = "taken"
        t.step += 1
        t.lineage[t.step] = uids

    @precondition(lambda self: self.trainer.step > self.trainer.settled)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        t = self.trainer
        step = data.draw(st.integers(t.settled + 1, t.step))
        groups = self.take(step, t.attempt)
        assert groups is not None
        assert [g.uid for g in groups] == t.lineage[step]

    @precondition(lambda self: not self.trainer.finished)
    @rule(count=st.integers(1, 3), checkpoint=st.sampled_from(["none", "durable", "settled"]))
    def healthy_iterations(self, count: int, checkpoint: str) -> None:
        """What goes on most of the time; without it random steps rarely come far."""
        for _ in range(count):
            self.healthy_worker(behind=0, spare=0)
            self._train()
            self.publish()
        if checkpoint != "none":
            self.trainer.durable = self.trainer.step
        if checkpoint == "settled" and self.trainer.durable > self.trainer.settled:
            self.settle()

    @rule()
    def publish_again(self) -> None:
        self.publish()

    def publish(self) -> None:
        t = self.trainer
        t.version += 1
        assert self.run(self.buffer.set_head(t.attempt, t.version, f"v{t.version}", step=t.step))

    @rule()
    def write_checkpoint(self) -> None:
        self.trainer.durable = self.trainer.step

    @precondition(lambda self: self.trainer.durable > self.trainer.settled)
    @rule()
    def settle_late(self) -> None:
        self.settle()

    def settle(self) -> None:
        t = self.trainer
        moved = self.run(self.buffer.settle(t.durable, t.attempt))
        assert moved == BATCH * (t.durable - t.settled)
        self._consumed(t.durable)
        with pytest.raises(StepSettled):
            self.take(t.durable, t.attempt)

    def _consumed(self, step: int) -> None:
        for earlier, uids in self.trainer.lineage.items():
            if earlier <= step:
                for uid in uids:
                    self.groups[uid].state = "consumed"
        self.trainer.settled = max(self.trainer.settled, step)

    @precondition(lambda self: self.trainer.step > 1)
    @rule()
    def restart_trainer(self) -> None:
        t, old = self.trainer, self.trainer.attempt
        t.attempt += 1
        begun = self.run(self.buffer.begin(t.attempt, t.durable))
        assert begun.settled == BATCH * (t.durable - t.settled)
        assert begun.requeued == BATCH * (t.step - t.durable)
        self._consumed(t.durable)
        for step in range(t.durable + 1, t.step + 1):
            for uid in t.lineage.pop(step):
                self.groups[uid].state = "ready"
        t.step, t.finished = t.durable, False
        self._old_attempt_is_fenced(old)
        self.publish()

    def _old_attempt_is_fenced(self, old: int) -> None:
        for call in (
            self.buffer.take(99, old, batch=BATCH, version=99, max_staleness=STALENESS),
            self.buffer.settle(99, old),
            self.buffer.set_head(old, 999, "zombie", step=99),
            self.buffer.finish(old),
            self.buffer.begin(old, 0),
        ):
            with pytest.raises(FencedAttempt):
                self.run(call)

    @precondition(lambda self: self.trainer.step > 2)
    @rule()
    def finish(self) -> None:
        open_groups = [uid for state in OPEN for uid in self.of(state)]
        assert self.run(self.buffer.finish(self.trainer.attempt)) == len(open_groups)
        for uid in open_groups:
            self.groups[uid].state = "cancelled"
        self.trainer.finished = True

    # ---- what must hold after every step

    @invariant()
    def ledger_is_whole(self) -> None:
        ledger = self.run(self.buffer.ledger())
        counts = Counter(group.state for group in self.groups.values())
        assert ledger == Ledger(issued=len(self.groups), **counts)
        assert ledger.balanced
        assert self.run(self.buffer.audit()).problems == ()

    @invariant()
    def nothing_is_left_behind(self) -> None:
        resident = {uid for uid, group in self.groups.items() if group.state not in CLOSED}
        keys = self.run(self.buffer.redis.keys("moerl:group:*"))
        assert {int(key.rsplit(b":", 1)[1]) for key in keys} == resident
        payloads = self.run(self.buffer.redis.keys("moerl:payload:*"))
        assert len(payloads) == len(self.of("ready")) + len(self.of("taken"))
        snapshot = self.run(self.buffer.snapshot())
        closed = {uid for uid, group in self.groups.items() if group.state in CLOSED}
        assert set(range(1, snapshot.low + 1)) | set(snapshot.exceptions) == closed
        assert snapshot.cursor == len(self.groups)


def _record(lease: Lease, version: int, usable: int) -> SampleGroup:
    samples = tuple(
        Sample.build(
            index=i,
            output_ids=[lease.uid, lease.epoch],
            logprobs=[-1.0] * TOKENS,
            versions=[version] * TOKENS,
            reward=0.0,
            usable=i < usable,
        )
        for i in range(SAMPLES)
    )
    return SampleGroup(
        uid=lease.uid,
        epoch=lease.epoch,
        incarnation=lease.incarnation,
        worker="w",
        prompt_index=lease.prompt_index,
        prompt_ids=token_ids([1]),
        samples=samples,
    )


def test_any_order_of_events_keeps_every_group(redis: RedisServer) -> None:
    BufferMachine.server = redis
    run_state_machine_as_test(
        BufferMachine,
        settings=settings(
            max_examples=30,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
