"""The typed client of the buffer: the only way the data plane talks to it.

One asyncio client serves trainer and driver; the trainer runs torch in a thread beside its loop. Methods of several
groups pipeline one script call per group, so no script holds the server for long. Payload goes by plain SET (with an
expiry, so that a worker that dies in between leaves nothing) before the commit that names it and makes it stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .model import Audit, Begun, BufferFault, CommitResult, Head, Lease, LeaseAnswer, Ledger, Snapshot, Stats
from .records import SampleGroup


class Buffer:
    """An open connection to one job's buffer. Make it with `connect`, end it with `close`."""

    @classmethod
    async def connect(cls, url: str, password: str | None = None, *, timeout_seconds: float = 120.0) -> Self:
        """Connect and wait until the server answers. BufferFault after `timeout_seconds` or on a wrong password."""
        raise NotImplementedError

    async def close(self) -> None: ...

    # Driver
    async def issue(self, count: int, *, batch: int, max_staleness: int) -> int:
        """Issue up to `count` new groups, moving the dataset cursor; the number issued (0: enough are open)."""
        raise NotImplementedError

    async def lease(
        self, worker: str, count: int, *, ttl_seconds: float, version: int, batch: int, max_staleness: int
    ) -> LeaseAnswer:
        """Lease up to `count` groups for a worker that serves policy `version`; expired leases first."""
        raise NotImplementedError

    async def renew(self, leases: Sequence[Lease], *, ttl_seconds: float) -> list[bool]:
        """Extend leases; False for those that are no longer this worker's."""
        raise NotImplementedError

    async def commit(self, lease: Lease, group: SampleGroup) -> CommitResult:
        """Admit a finished group, exactly once per uid however often it is repeated."""
        raise NotImplementedError

    async def release(self, lease: Lease) -> bool:
        """Give a lease back unused; the group is the next to be leased."""
        raise NotImplementedError

    async def fail(self, lease: Lease, *, reason: str, max_failures: int = 3) -> bool:
        """The group itself is at fault (not infrastructure): retried elsewhere, failed after `max_failures`."""
        raise NotImplementedError

    # Trainer (rank 0)
    async def begin(self, attempt: int, step: int) -> Begun:
        """Start an attempt that resumes after `step`. First call of every trainer process."""
        raise NotImplementedError

    async def take(
        self, step: int, attempt: int, *, batch: int, version: int, max_staleness: int
    ) -> list[SampleGroup] | None:
        """The ordered batch of `step`, the same however often it is asked for; None while too few are admissible."""
        raise NotImplementedError

    async def settle(self, step: int, attempt: int) -> int:
        """After a durable checkpoint of `step`: close all groups taken up to it, free their payload; their number."""
        raise NotImplementedError

    async def finish(self, attempt: int) -> int:
        """No more groups are wanted: refuse issue and lease from now on, cancel what is open; their number."""
        raise NotImplementedError

    async def set_head(self, attempt: int, version: int, manifest_key: str, *, step: int) -> bool:
        """Publish; False if HEAD already is there or further. FencedAttempt for a superseded attempt."""
        raise NotImplementedError

    async def snapshot(self) -> Snapshot:
        """What belongs into a checkpoint."""
        raise NotImplementedError

    # Both
    async def head(self) -> Head | None:
        """The newest published policy, None before the first publish."""
        raise NotImplementedError

    async def ledger(self) -> Ledger:
        """The counters, as kept by the scripts."""
        raise NotImplementedError

    async def stats(self) -> Stats:
        """Ledger, lease and token ledgers, cursor."""
        raise NotImplementedError

    async def audit(self) -> Audit:
        """Recount all structures and compare them with the counters."""
        raise NotImplementedError

    # Weight objects and manifests: opaque values outside every script
    async def put_blob(self, key: str, value: bytes) -> None:
        """Store an immutable object under `weights:<key>`."""
        raise NotImplementedError

    async def get_blob(self, key: str) -> bytes | None:
        """The object, None if there is none."""
        raise NotImplementedError

    async def delete_blobs(self, keys: Sequence[str]) -> int:
        """Remove objects (unlinked in the background); how many existed."""
        raise NotImplementedError

    async def list_blobs(self, prefix: str = "") -> list[str]:
        """Keys of stored objects that begin with `prefix`."""
        raise NotImplementedError
