"""Fixtures of the data plane's tests: one real redis-server per session, emptied for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from moerl_runtime.buffer.client import Buffer
from support.redis import RedisServer, redis_server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """The server; most tests want `buffer`."""
    with redis_server() as server:
        yield server


@pytest.fixture
async def buffer(redis: RedisServer) -> AsyncIterator[Buffer]:
    """A client of an empty buffer."""
    async with await Buffer.connect(redis.url, redis.password, timeout_seconds=10) as client:
        await client.redis.flushall()
        yield client
