"""A real redis-server on a free port of this machine, for tests of the buffer.

Use the fixtures by importing them in a conftest: `from support.redis import buffer, redis`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from moerl_runtime.buffer import server
from moerl_runtime.buffer.client import Buffer
from support.missing import without

PASSWORD = 'pass word "quoted" \\ #1'


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Where a running server is."""

    port: int
    password: str
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """What MOERL_BUFFER_URL would hold."""
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def redis_server(*, password: str = PASSWORD) -> Iterator[RedisServer]:
    """Start a server from the configuration that the product writes; stopped and removed at the end."""
    if not any(shutil.which(name) for name in server.SERVERS):
        without("no redis-server or valkey-server is installed")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="moerl-test-redis-") as folder:
        command = server.prepare(
            {
                "MOERL_RUN_DIR": folder,
                "MOERL_BUFFER_PASSWORD": password,
                "MOERL_BUFFER_PORT": str(port),
                "MOERL_BUFFER_BIND": "127.0.0.1",
            }
        )
        log = (Path(folder) / "log").open("wb")
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(port, process)
            yield RedisServer(port=port, password=password, process=process)
        finally:
            process.terminate()
            process.wait(timeout=10)
            log.close()


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """The server; most tests want `buffer`."""
    with redis_server() as running:
        yield running


@pytest.fixture
async def buffer(redis: RedisServer) -> AsyncIterator[Buffer]:
    """A client of an empty buffer."""
    async with await Buffer.connect(redis.url, redis.password, timeout_seconds=10) as client:
        await client.redis.flushall()
        yield client


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(f"redis-server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("redis-server did not open its port")
