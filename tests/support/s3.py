"""An S3 server for tests: moto in a process of its own.

moto keeps its buckets in variables of its modules, so two servers in one process (this one and the AWS emulator's)
would share them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from botocore.exceptions import EndpointConnectionError

from support.redis import free_port

BUCKET = "moerl"


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server with one empty bucket, `moerl`; it ends with the block."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=10)


def _make_bucket(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {process.returncode}")
        try:
            boto3.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
            return
        except EndpointConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
