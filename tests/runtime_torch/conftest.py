"""Fixtures of the tests with torch: a real redis-server and an S3 server in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from moerl_runtime.buffer.client import Buffer
from moerl_runtime.checkpoint import storage
from support.redis import RedisServer, redis_server


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """These models are too small for more, and other processes want the cores."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


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


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of moto's S3 on this machine, with bucket `moerl`."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="moerl")
    yield endpoint
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket URI; the environment points to the server that holds it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    storage.client.cache_clear()
    yield "s3://moerl"
    storage.client.cache_clear()
