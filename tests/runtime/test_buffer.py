"""The buffer's scripts on a real server: what each may and may not do."""

from __future__ import annotations

import asyncio

import pytest

from moerl_runtime.buffer.client import Buffer
from moerl_runtime.buffer.model import BufferFault, CommitResult, FencedAttempt, Lease, StepSettled, UnknownAttempt
from moerl_runtime.buffer.records import Sample, SampleGroup
from support.redis import RedisServer

BATCH = 4
STALENESS = 1


def group(lease: Lease, version: int, *, usable: int = 2) -> SampleGroup:
    """A finished group of two samples of three tokens."""
    samples = tuple(
        Sample.build(
            index=i,
            output_ids=[1, 2, lease.uid],
            logprobs=[-0.1, -0.2, -0.3],
            versions=[version] * 3,
            reward=0.5,
            usable=i < usable,
        )
        for i in range(2)
    )
    return SampleGroup(
        uid=lease.uid,
        epoch=lease.epoch,
        incarnation=lease.incarnation,
        worker=lease.worker,
        prompt_index=lease.prompt_index,
        prompt_ids=Sample.build(index=0, output_ids=[9], logprobs=[0], versions=[0], reward=0).output_ids,
        samples=samples,
    )


async def lease(buffer: Buffer, count: int = 1, *, worker: str = "w", version: int = 0) -> list[Lease]:
    """Issue as much as is allowed, then lease."""
    await buffer.issue(count, batch=BATCH, max_staleness=STALENESS)
    answer = await buffer.lease(worker, count, ttl_seconds=60, version=version, batch=BATCH, max_staleness=STALENESS)
    return list(answer.leases)


async def fill(buffer: Buffer, count: int, *, version: int = 0) -> list[int]:
    """Bring `count` groups to ready; their uids in order."""
    leases = await lease(buffer, count, version=version)
    assert len(leases) == count
    for one in leases:
        assert await buffer.commit(one, group(one, version)) is CommitResult.ADMITTED
    return [one.uid for one in leases]


async def take(buffer: Buffer, step: int, *, attempt: int = 1, version: int = 0) -> list[int] | None:
    """The uids of a step's batch."""
    groups = await buffer.take(step, attempt, batch=BATCH, version=version, max_staleness=STALENESS)
    return None if groups is None else [g.uid for g in groups]


async def expire(buffer: Buffer, uid: int) -> None:
    """As if the lease's time had run out."""
    await buffer.redis.zadd("moerl:leases", {str(uid): 1}, xx=True)


async def sound(buffer: Buffer) -> None:
    """The ledger balances and a recount finds nothing."""
    assert (await buffer.ledger()).balanced
    assert (await buffer.audit()).problems == ()


async def test_a_group_goes_from_issue_to_consumed(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    await fill(buffer, BATCH)
    groups = await buffer.take(1, 1, batch=BATCH, version=0, max_staleness=STALENESS)
    assert groups is not None
    assert [g.uid for g in groups] == [1, 2, 3, 4]
    assert [g.prompt_index for g in groups] == [0, 1, 2, 3]
    assert list(groups[2].samples[0].output_ids) == [1, 2, 3]
    assert groups[2].samples[0].logprobs[1] == pytest.approx(-0.2)
    await sound(buffer)
    assert await buffer.settle(1, 1) == BATCH
    assert (await buffer.ledger()).consumed == BATCH
    assert await buffer.redis.keys("moerl:payload:*") == []
    assert await buffer.redis.keys("moerl:group:*") == []
    snapshot = await buffer.snapshot()
    assert (snapshot.cursor, snapshot.low, snapshot.exceptions) == (4, 4, ())
    await sound(buffer)


async def test_open_groups_are_bounded_by_staleness(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    assert await buffer.issue(100, batch=BATCH, max_staleness=STALENESS) == 2 * BATCH
    assert await buffer.issue(1, batch=BATCH, max_staleness=STALENESS) == 0
    await fill(buffer, 2 * BATCH)
    assert await take(buffer, 1) == [1, 2, 3, 4]
    # The trainer is on version 0 -> 1 now; what is ready is for 1 -> 2. A further batch would be two versions old.
    assert await buffer.issue(1, batch=BATCH, max_staleness=STALENESS) == 0
    assert await buffer.set_head(1, 1, "v1", step=1)
    assert await buffer.issue(100, batch=BATCH, max_staleness=STALENESS) == BATCH


async def test_staleness_zero_alternates_without_deadlock(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    for step in range(1, 4):
        version = step - 1
        assert await buffer.issue(100, batch=BATCH, max_staleness=0) == BATCH
        answer = await buffer.lease("w", 10, ttl_seconds=9, version=version, batch=BATCH, max_staleness=0)
        for one in answer.leases:
            await buffer.commit(one, group(one, version))
        assert await buffer.take(step, 1, batch=BATCH, version=version, max_staleness=0) is not None
        assert await buffer.issue(1, batch=BATCH, max_staleness=0) == 0, "nothing is generated while training"
        assert await buffer.set_head(1, version + 1, f"v{version + 1}", step=step)
    # Two steps on one version: while the trainer waits, groups of that version are wanted.
    assert await buffer.take(4, 1, batch=BATCH, version=3, max_staleness=0) is None
    assert await buffer.issue(100, batch=BATCH, max_staleness=0) == BATCH
    await sound(buffer)


async def test_a_worker_on_an_old_policy_is_told_which_it_needs(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    await buffer.set_head(1, 5, "v5", step=0)
    await buffer.issue(100, batch=BATCH, max_staleness=STALENESS)
    old = await buffer.lease("w", 1, ttl_seconds=9, version=3, batch=BATCH, max_staleness=STALENESS)
    assert (old.leases, old.min_version) == ((), 4)
    answer = await buffer.lease("w", 8, ttl_seconds=9, version=4, batch=BATCH, max_staleness=STALENESS)
    # The first batch is consumed at version 5; the second at 6, where version 4 is too old.
    assert [one.uid for one in answer.leases] == [1, 2, 3, 4]
    assert answer.min_version == 5
    assert all(one.min_version == 4 for one in answer.leases)


async def test_expired_leases_go_to_the_next_worker_and_fence_the_first(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    (first,) = await lease(buffer)
    await expire(buffer, first.uid)
    (second,) = await lease(buffer, worker="v")
    assert (second.uid, second.epoch) == (first.uid, first.epoch + 1)
    assert await buffer.renew([first, second], ttl_seconds=9) == [False, True]
    assert await buffer.commit(first, group(first, 0)) is CommitResult.FENCED
    assert not await buffer.release(first)
    assert not await buffer.fail(first, reason="x")
    assert await buffer.commit(second, group(second, 0)) is CommitResult.ADMITTED
    assert await buffer.renew([first, second], ttl_seconds=9) == [False, True], "its own commit is no loss"
    assert await buffer.commit(second, group(second, 0)) is CommitResult.DUPLICATE
    assert await buffer.commit(first, group(first, 0)) is CommitResult.FENCED
    assert len(await buffer.redis.keys("moerl:payload:*")) == 1, "a fenced commit leaves no payload behind"
    assert (await buffer.stats()).refusals == {"fenced": 2, "duplicate": 1}
    await sound(buffer)


async def test_many_expired_leases_never_block_leasing(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    leases = await lease(buffer, 2 * BATCH)
    for one in leases:
        await expire(buffer, one.uid)
    assert len(await lease(buffer, 2 * BATCH, worker="v")) == 2 * BATCH
    await sound(buffer)


async def test_a_late_commit_of_an_unclaimed_lease_counts(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    (one,) = await lease(buffer)
    await expire(buffer, one.uid)
    assert await buffer.commit(one, group(one, 0)) is CommitResult.ADMITTED
    await sound(buffer)


async def test_a_released_group_is_leased_before_newer_ones(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    one, _ = await lease(buffer, 2)
    assert await buffer.release(one)
    assert not await buffer.release(one)
    assert await buffer.commit(one, group(one, 0)) is CommitResult.FENCED
    again, _ = await lease(buffer, 2, worker="v")
    assert (again.uid, again.epoch) == (one.uid, 2)
    await sound(buffer)


async def test_a_faulty_group_is_retried_then_failed(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    for tries in range(1, 4):
        (one,) = await lease(buffer)
        assert one.uid == 1
        assert one.epoch == tries
        assert await buffer.fail(one, reason="no such tool", max_failures=3)
    stats = await buffer.stats()
    assert stats.ledger.failed == 1
    assert stats.last_failure == "1: no such tool"
    assert await buffer.commit(one, group(one, 0)) is CommitResult.CLOSED
    await sound(buffer)


async def test_a_group_without_two_usable_samples_is_filtered(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    (one,) = await lease(buffer)
    assert await buffer.commit(one, group(one, 0, usable=1)) is CommitResult.FILTERED
    assert (await buffer.ledger()).filtered == 1
    assert await buffer.redis.keys("moerl:payload:*") == []
    await sound(buffer)


async def test_take_answers_the_same_again_and_evicts_by_oldest_token(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    leases = await lease(buffer, 2 * BATCH)
    for one in leases[:3]:
        await buffer.commit(one, group(one, 0))
    for one in leases[3:]:
        await buffer.commit(one, group(one, 1))
    assert await take(buffer, 1, version=2) == [4, 5, 6, 7]
    assert await take(buffer, 1, version=2) == [4, 5, 6, 7]
    assert (await buffer.ledger()).stale == 3
    assert await take(buffer, 2, version=2) is None
    assert (await buffer.stats()).tokens == {"admitted": 48, "stale": 18}
    await sound(buffer)


async def test_a_lost_payload_is_generated_again(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    await fill(buffer, BATCH)
    await buffer.redis.delete("moerl:payload:2:1")
    assert (await buffer.audit()).problems == ("group 2 has no payload",)
    assert await take(buffer, 1) is None
    (again,) = await lease(buffer)
    assert again.uid == 2
    await buffer.commit(again, group(again, 0))
    assert await take(buffer, 1) == [1, 3, 4, 2]
    await sound(buffer)


async def test_a_new_attempt_fences_the_old_and_trains_lost_steps_again(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    await fill(buffer, 2 * BATCH)
    assert await take(buffer, 1) == [1, 2, 3, 4]
    assert await take(buffer, 2) == [5, 6, 7, 8]
    await buffer.set_head(1, 1, "v1", step=2)
    # The checkpoint of step 1 is durable; the trainer died before it could say so.
    begun = await buffer.begin(2, 1)
    assert (begun.settled, begun.requeued) == (BATCH, BATCH)
    assert begun.head is not None
    assert begun.head.version == 1
    for call in (
        buffer.take(2, 1, batch=BATCH, version=1, max_staleness=STALENESS),
        buffer.settle(2, 1),
        buffer.set_head(1, 9, "v9", step=9),
        buffer.finish(1),
        buffer.begin(1, 0),
    ):
        with pytest.raises(FencedAttempt, match="attempt 2"):
            await call
    with pytest.raises(StepSettled):
        await take(buffer, 1, attempt=2)
    assert await take(buffer, 2, attempt=2, version=1) == [5, 6, 7, 8]
    await sound(buffer)


async def test_a_buffer_that_never_saw_the_attempt_says_so(buffer: Buffer) -> None:
    with pytest.raises(UnknownAttempt, match="restart the trainer"):
        await take(buffer, 1, attempt=3)


async def test_head_never_goes_back(buffer: Buffer) -> None:
    assert await buffer.head() is None
    await buffer.begin(1, 0)
    assert await buffer.set_head(1, 4, "v4", step=3)
    assert await buffer.set_head(1, 4, "v4", step=3), "a repeated publish is the same publish"
    assert not await buffer.set_head(1, 4, "other", step=3)
    assert not await buffer.set_head(1, 3, "v3", step=2)
    await buffer.begin(2, 1)
    assert not await buffer.set_head(2, 4, "v4b", step=1), "versions are never reused"
    assert await buffer.set_head(2, 5, "v5", step=1), "a higher version of an earlier step"
    head = await buffer.head()
    assert head is not None
    assert (head.attempt, head.version, head.step, head.manifest_key) == (2, 5, 1, "v5")


async def test_finish_cancels_what_is_open(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    leases = await lease(buffer, 5)
    await buffer.commit(leases[0], group(leases[0], 0))
    await buffer.release(leases[1])
    assert await buffer.finish(1) == 5
    assert await buffer.issue(1, batch=BATCH, max_staleness=STALENESS) == 0
    answer = await buffer.lease("w", 1, ttl_seconds=9, version=0, batch=BATCH, max_staleness=STALENESS)
    assert answer.finished
    assert await buffer.commit(leases[2], group(leases[2], 0)) is CommitResult.CLOSED
    assert (await buffer.ledger()).cancelled == 5
    await sound(buffer)


async def test_blobs(buffer: Buffer) -> None:
    await buffer.put_blob("v1/a", b"\0\xff")
    await buffer.put_blob("v1*", b"")
    assert await buffer.get_blob("v1/a") == b"\0\xff"
    assert await buffer.get_blob("v2") is None
    assert await buffer.list_blobs("v1*") == ["v1*"]
    assert await buffer.list_blobs("v1") == ["v1*", "v1/a"]
    assert await buffer.delete_blobs(["v1/a", "nothing"]) == 1


async def test_scripts_survive_a_flush_of_the_script_cache(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    await buffer.redis.script_flush()
    assert await buffer.issue(3, batch=BATCH, max_staleness=STALENESS) == 3


async def test_a_wrong_password_and_a_missing_server_are_told_apart(redis: RedisServer) -> None:
    with pytest.raises(BufferFault, match="MOERL_BUFFER_PASSWORD"):
        await Buffer.connect(redis.url, "wrong", timeout_seconds=5)
    with pytest.raises(BufferFault, match="no buffer answered at 127"):
        await Buffer.connect("redis://127.0.0.1:1/0", "x", timeout_seconds=1)


async def test_a_step_trained_again_has_the_same_batch_in_the_same_order(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    for one in reversed(await lease(buffer, 2 * BATCH)):
        await buffer.commit(one, group(one, 0))
    assert await take(buffer, 1) == [8, 7, 6, 5]
    assert await take(buffer, 2) == [4, 3, 2, 1]
    await buffer.begin(2, 0)
    assert await take(buffer, 1, attempt=2) == [8, 7, 6, 5]
    assert await take(buffer, 2, attempt=2) == [4, 3, 2, 1]
    await sound(buffer)


async def test_many_workers_at_once_never_share_a_group(redis: RedisServer, buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    workers = [await Buffer.connect(redis.url, redis.password) for _ in range(8)]
    answers = await asyncio.gather(*(lease(one, 3, worker=f"w{i}") for i, one in enumerate(workers)))
    leases = [one for answer in answers for one in answer]
    assert len(leases) == len({one.uid for one in leases}) == 2 * BATCH
    results = await asyncio.gather(*(workers[i % 8].commit(one, group(one, 0)) for i, one in enumerate(leases * 3)))
    assert results.count(CommitResult.ADMITTED) == 2 * BATCH
    assert results.count(CommitResult.DUPLICATE) == 4 * BATCH
    await asyncio.gather(*(one.close() for one in workers))
    await sound(buffer)


async def test_leases_of_a_lost_buffer_do_not_fit_the_next(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    (old,) = await lease(buffer)
    await buffer.redis.flushall()
    await buffer.redis.hset("moerl:meta", "incarnation", old.incarnation + 1)  # as if a second had passed
    await buffer.begin(2, 0)
    (new,) = await lease(buffer, worker="v")
    assert (new.uid, new.epoch) == (old.uid, old.epoch)
    assert await buffer.commit(old, group(old, 0)) is CommitResult.FENCED
    assert await buffer.renew([old, new], ttl_seconds=9) == [False, True]
    assert await buffer.commit(new, group(new, 0)) is CommitResult.ADMITTED
    await sound(buffer)


async def test_a_checkpoint_older_than_the_settled_step_trains_on_new_groups(buffer: Buffer) -> None:
    await buffer.begin(1, 0)
    await fill(buffer, BATCH)
    assert await take(buffer, 1) == [1, 2, 3, 4]
    assert await buffer.settle(1, 1) == BATCH
    await buffer.begin(2, 0)
    assert await take(buffer, 1, attempt=2) is None
    await fill(buffer, BATCH)
    assert await take(buffer, 1, attempt=2) == [5, 6, 7, 8]
    await sound(buffer)
