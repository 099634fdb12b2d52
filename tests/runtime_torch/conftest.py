"""Fixtures of the tests with torch: a real redis-server and an S3 server, each a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from moerl_runtime.checkpoint import storage
from support.redis import buffer, redis
from support.s3 import BUCKET, s3_server

__all__ = ["buffer", "redis"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """These models are too small for more, and other processes want the cores."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 server on this machine, with bucket `moerl`."""
    with s3_server() as address:
        yield address


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket URI; the environment points to the server that holds it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    storage.client.cache_clear()
    yield f"s3://{BUCKET}"
    storage.client.cache_clear()
