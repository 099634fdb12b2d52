"""The typed client of the buffer: the only way the data plane talks to it.

One asyncio client serves trainer and driver; the trainer runs torch in a thread beside its loop. Methods of several
groups pipeline one script call per group, so no script holds the server for long. Payload goes by plain SET (with an
expiry, so that a worker that dies in between leaves nothing) before the commit that names it and makes it stay.

The trainer's order: `begin` once, then per step `take`, train, `set_head`; after a durable checkpoint `settle`; at the
end `finish`. The driver's: `head`, `lease` (with `issue` before it), `renew` meanwhile, `commit` or `release`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any, Self, cast

from redis.asyncio import Redis

from . import records, scripts
from .connection import BASE, open_redis, reachable, run, text
from .model import (
    Audit,
    Begun,
    BufferFault,
    CommitResult,
    FencedAttempt,
    Head,
    Lease,
    LeaseAnswer,
    Ledger,
    Snapshot,
    Stats,
    StepSettled,
    UnknownAttempt,
)
from .records import SampleGroup

PAYLOAD_GRACE_SECONDS = 900
"""How long a payload without a commit stays: far longer than the moment between the two, yet bounded."""

CONNECT_SECONDS = 1800.0
"""How long a process waits for a buffer that may not be scheduled yet; waiting spends no attempt, giving up does."""

_STATES = tuple(f.name for f in fields(Ledger))


class Buffer:
    """An open connection to one job's buffer. Make it with `connect`, end it with `close`.

    Every method raises BufferFault when the server cannot be reached (after some seconds of retries).
    """

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    @classmethod
    async def connect(cls, url: str, password: str | None = None, *, timeout_seconds: float = CONNECT_SECONDS) -> Self:
        """Connect and wait until the server answers. BufferFault after `timeout_seconds` or on a wrong password."""
        return cls(await open_redis(url, password, timeout_seconds=timeout_seconds))

    async def close(self) -> None:
        """Close the connections."""
        await self.redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- driver

    @reachable
    async def issue(self, count: int, *, batch: int, max_staleness: int) -> int:
        """Issue up to `count` new groups, moving the dataset cursor; the number issued (0: enough are open)."""
        answers = await self._first_alone("issue", (batch, max_staleness), count, good=lambda answer: answer[0] != 0)
        return sum(1 for answer in answers if answer[0])

    @reachable
    async def lease(
        self, worker: str, count: int, *, ttl_seconds: float, version: int, batch: int, max_staleness: int
    ) -> LeaseAnswer:
        """Lease up to `count` groups for a worker that serves policy `version`; expired leases first."""
        call = (worker, version, round(ttl_seconds * 1000), batch, max_staleness)
        answers = await self._first_alone("lease", call, count, good=lambda answer: answer[0] == b"ok")
        leases, least, finished = [], 0, False
        for status, *rest in answers:
            if status == b"ok":
                uid, incarnation, epoch, index, min_version = rest
                leases.append(
                    Lease(
                        uid=uid,
                        incarnation=incarnation,
                        epoch=epoch,
                        prompt_index=index,
                        min_version=min_version,
                        worker=worker,
                    )
                )
            else:
                least = max(least, rest[0])
                finished = finished or status == b"finished"
        return LeaseAnswer(leases=tuple(leases), min_version=least, finished=finished)

    @reachable
    async def renew(self, leases: Sequence[Lease], *, ttl_seconds: float) -> list[bool]:
        """Extend leases; False for those that are no longer this worker's. One that it committed meanwhile is True."""
        ttl = round(ttl_seconds * 1000)
        answers = await run(self.redis, "renew", [(*_token(lease), ttl) for lease in leases])
        return [answer == 1 for answer in answers]

    @reachable
    async def commit(self, lease: Lease, group: SampleGroup) -> CommitResult:
        """Admit a finished group, exactly once per uid however often it is repeated."""
        if (group.uid, group.epoch, group.incarnation) != (lease.uid, lease.epoch, lease.incarnation):
            raise BufferFault(
                f"group {group.uid} epoch {group.epoch} does not belong to lease {lease.uid} {lease.epoch}"
            )
        key = f"{BASE}:payload:{lease.uid}:{lease.epoch}"
        payload = records.encode(group)
        result = CommitResult.MISSING
        for _ in range(2):
            stored = await self.redis.set(key, payload, ex=PAYLOAD_GRACE_SECONDS, nx=True)
            call = (*_token(lease), group.oldest_version, group.tokens, group.usable)
            result = CommitResult(text((await run(self.redis, "commit", [call]))[0]))
            if result in (CommitResult.FENCED, CommitResult.CLOSED) and stored:
                await self.redis.unlink(key)
            if result is not CommitResult.MISSING:
                break
        return result

    @reachable
    async def release(self, lease: Lease) -> bool:
        """Give a lease back unused; the group is among the next to be leased."""
        return bool((await run(self.redis, "release", [_token(lease)]))[0] == 1)

    @reachable
    async def fail(self, lease: Lease, *, reason: str, max_failures: int = 3) -> bool:
        """The group itself is at fault (not infrastructure): tried again, failed for good after `max_failures`.

        False if the lease was no longer this worker's.
        """
        answer = await run(self.redis, "fail", [(*_token(lease), reason[:500], max_failures)])
        return text(answer[0]) != "fenced"

    # ---- trainer (rank 0)

    @reachable
    async def begin(self, attempt: int, step: int) -> Begun:
        """Start an attempt that resumes from the checkpoint of `step` (0: none). First call of a trainer process.

        Fences every lower attempt. Groups trained up to `step` are settled, since their checkpoint is durable; groups
        taken later go back to ready at their old place in the order, payload and all: the lost training is done anew.
        FencedAttempt if a higher attempt has begun.
        """
        answer = _checked((await run(self.redis, "begin", [(attempt, step)]))[0])
        steps = [int(s) for s in answer[2:]]
        settled = await self._each_step("settle", [s for s in steps if s <= step], attempt)
        requeued = await self._each_step("requeue", [s for s in steps if s > step], attempt)
        return Begun(
            attempt=attempt,
            step=step,
            requeued=requeued,
            settled=settled,
            cursor=answer[1],
            head=await self.head(),
        )

    @reachable
    async def take(
        self, step: int, attempt: int, *, batch: int, version: int, max_staleness: int
    ) -> list[SampleGroup] | None:
        """The ordered batch of `step`, the same however often it is asked for; None while too few are admissible.

        `version` is the trainer's: the policy that will be trained on the batch. No returned group has a token older
        than `version - max_staleness`; those that have are evicted. Raises FencedAttempt, UnknownAttempt, StepSettled.
        """
        answer = _checked((await run(self.redis, "take", [(step, attempt, batch, version, max_staleness)]))[0])
        if answer[0] == b"wait":
            return None
        if answer[0] == b"settled":
            raise StepSettled(f"step {step} is settled already (up to {answer[1]}): resume from a later checkpoint")
        keys = [f"{BASE}:payload:{uid}:{epoch}" for uid, epoch in zip(answer[1::2], answer[2::2], strict=True)]
        pipe = self.redis.pipeline(transaction=False)
        for key in keys:
            pipe.get(key)
        payloads = await pipe.execute()
        lost = [key for key, payload in zip(keys, payloads, strict=True) if payload is None]
        if lost:
            raise BufferFault(f"payload of {len(lost)} groups of step {step} is gone ({lost[0]}): restart the trainer")
        return [records.decode(payload) for payload in payloads]

    @reachable
    async def settle(self, step: int, attempt: int) -> int:
        """After a durable checkpoint of `step`: close all groups taken up to it, free their payload; their number.

        May be repeated. Raises FencedAttempt, UnknownAttempt.
        """
        earlier = await self.redis.zrangebyscore(f"{BASE}:steps", "-inf", f"({step}")
        return await self._each_step("settle", [*(int(s) for s in earlier), step], attempt)

    @reachable
    async def finish(self, attempt: int) -> int:
        """No more groups are wanted: refuse issue and lease from now on, cancel what is open; their number."""
        answer = _checked((await run(self.redis, "finish", [(attempt,)]))[0])
        cancelled = await run(self.redis, "cancel", [(uid, attempt) for uid in answer[1:]])
        return sum(_checked(one)[1] for one in cancelled)

    @reachable
    async def set_head(self, attempt: int, version: int, manifest_key: str, *, step: int) -> bool:
        """Publish; True if HEAD now is this publish, False if it already is at this version or further.

        Raises FencedAttempt for a superseded attempt, UnknownAttempt before `begin`.
        """
        answer = _checked((await run(self.redis, "head", [(attempt, version, step, manifest_key)]))[0])
        return bool(answer[1])

    @reachable
    async def snapshot(self) -> Snapshot:
        """What belongs into a checkpoint."""
        pipe = self.redis.pipeline(transaction=True)
        pipe.hmget(f"{BASE}:meta", ["cursor", "low"])
        pipe.hget(f"{BASE}:ledger", "issued")
        pipe.smembers(f"{BASE}:closed")
        (cursor, low), issued, closed = await pipe.execute()
        return Snapshot(
            cursor=int(cursor or 0),
            issued=int(issued or 0),
            low=int(low or 0),
            exceptions=tuple(sorted(int(uid) for uid in closed)),
        )

    async def _first_alone(
        self, name: scripts.Name, call: tuple[str | int | float, ...], count: int, *, good: Callable[[Any], bool]
    ) -> list[Any]:
        """The same call `count` times; when the first gets nothing (an idle worker's poll), the others are spared."""
        first = await run(self.redis, name, [call])
        return first + await run(self.redis, name, [call] * (count - 1)) if good(first[0]) else first

    async def _each_step(self, name: scripts.Name, steps: list[int], attempt: int) -> int:
        """Run a script of one step for each step, lowest first; the sum of groups moved."""
        return sum(_checked(a)[1] for a in await run(self.redis, name, [(step, attempt) for step in steps]))

    # ---- both

    @reachable
    async def head(self) -> Head | None:
        """The newest published policy, None before the first publish."""
        record: dict[bytes, bytes] = await cast("Awaitable[Any]", self.redis.hgetall(f"{BASE}:head"))
        if not record:
            return None
        return Head(
            attempt=int(record[b"attempt"]),
            version=int(record[b"version"]),
            step=int(record[b"step"]),
            manifest_key=record[b"manifest"].decode(),
        )

    @reachable
    async def ledger(self) -> Ledger:
        """The counters of groups, as kept by the scripts."""
        return (await self.stats()).ledger

    @reachable
    async def stats(self) -> Stats:
        """Ledger, lease and token ledgers, cursor."""
        pipe = self.redis.pipeline(transaction=True)
        pipe.hgetall(f"{BASE}:ledger")
        pipe.hgetall(f"{BASE}:meta")
        counters, meta = ({text(k): text(v) for k, v in answer.items()} for answer in await pipe.execute())

        def part(prefix: str) -> dict[str, int]:
            return {k.removeprefix(prefix): int(v) for k, v in counters.items() if k.startswith(prefix)}

        return Stats(
            ledger=Ledger(**{state: int(counters.get(state, 0)) for state in _STATES}),
            leases=part("lease:"),
            tokens=part("tokens:"),
            refusals=part("refused:"),
            cursor=int(meta.get("cursor", 0)),
            attempt=int(meta.get("attempt", 0)),
            settled_step=int(meta.get("settled", 0)),
            finished=meta.get("finished") == "1",
            last_failure=meta.get("lastFailure", ""),
        )

    @reachable
    async def audit(self) -> Audit:
        """Recount all structures and compare them with the counters."""
        todo, leased, ready, taken, closed, *problems = (await run(self.redis, "audit", [()]))[0]
        return Audit(
            todo=todo,
            leased=leased,
            ready=ready,
            taken=taken,
            closed=closed,
            problems=tuple(text(problem) for problem in problems),
        )

    # ---- weight objects and manifests: opaque values outside every script

    @reachable
    async def put_blob(self, key: str, value: bytes) -> None:
        """Store an immutable object under `<base>:weights:<key>`."""
        await self.redis.set(f"{BASE}:weights:{key}", value)

    @reachable
    async def get_blob(self, key: str) -> bytes | None:
        """The object, None if there is none."""
        value: bytes | None = await self.redis.get(f"{BASE}:weights:{key}")
        return value

    @reachable
    async def delete_blobs(self, keys: Sequence[str]) -> int:
        """Remove objects (their memory is freed in the background); how many existed."""
        if not keys:
            return 0
        return int(await self.redis.unlink(*(f"{BASE}:weights:{key}" for key in keys)))

    @reachable
    async def list_blobs(self, prefix: str = "") -> list[str]:
        """Keys of stored objects that begin with `prefix`, sorted."""
        front = f"{BASE}:weights:"
        pattern = front + _literal(prefix) + "*"
        return sorted([text(key).removeprefix(front) async for key in self.redis.scan_iter(match=pattern, count=500)])


def _token(lease: Lease) -> tuple[int, int, int]:
    return lease.uid, lease.incarnation, lease.epoch


def _checked(answer: list[Any]) -> list[Any]:
    """The script's answer, unless it refuses the attempt."""
    if answer[0] == b"fenced":
        raise FencedAttempt(f"trainer attempt {answer[1]} has begun: this older attempt must stop")
    if answer[0] == b"unknown":
        raise UnknownAttempt(
            f"the buffer knows trainer attempts up to {answer[1]} only; call begin first, or, if it was called, "
            "the buffer was lost: restart the trainer from its last checkpoint"
        )
    return answer


def _literal(prefix: str) -> str:
    """`prefix` with glob characters taken literally."""
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in prefix)
