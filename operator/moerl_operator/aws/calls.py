"""Calls of boto3 from asyncio: an own bounded thread pool, counted, with botocore's errors sorted.

boto3 blocks. In the loop's default pool a slow AWS would starve everything else that uses threads, and
without a bound a resync of many jobs would become a burst that AWS throttles.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config

from moerl_operator.aws.errors import sort
from moerl_operator.control.ports import AwsFailure

THREADS = 6
_PAGED = {"list_nodegroups", "describe_launch_templates", "describe_auto_scaling_groups", "describe_instance_types"}

CallObserver = Callable[[str, str, str, float], None]
"""(service, operation, error code or '', seconds) of every finished call."""


class Calls:
    """The AWS APIs by service and operation name; clients are made once, in the pool, since that reads files."""

    def __init__(
        self,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        # boto3 itself reads AWS_DEFAULT_REGION only; every other SDK, and EKS's pod identity, set AWS_REGION.
        self._region = region or os.environ.get("AWS_REGION")
        self._endpoint = endpoint_url
        self._observer = observer or (lambda service, operation, code, seconds: None)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="aws")
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()

    async def __call__(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer of one operation (all its pages merged, for those that list). Raises AwsFailure."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        code = ""
        try:
            return await loop.run_in_executor(self._pool, self._call, service, operation, parameters)
        except Exception as error:
            sorted_error = sort(error, f"{service}:{api_name(operation)}")
            code = sorted_error.code
            raise AwsFailure(sorted_error) from None
        finally:
            self._observer(service, api_name(operation), code, loop.time() - started)

    def close(self) -> None:
        """Stop taking calls; those under way end by their own timeouts."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        client = self._client(service)
        if operation not in _PAGED:
            answer: dict[str, Any] = getattr(client, operation)(**parameters)
            return answer
        merged: dict[str, Any] = {}
        for page in client.get_paginator(operation).paginate(**parameters):
            for key, value in page.items():
                if isinstance(value, list):
                    merged.setdefault(key, []).extend(value)
        return merged

    def _client(self, service: str) -> Any:
        with self._making:  # making clients is not thread-safe
            if service not in self._clients:
                config = Config(
                    connect_timeout=5,
                    read_timeout=30,
                    retries={"mode": "adaptive", "max_attempts": 4},
                    max_pool_connections=THREADS,
                    user_agent_extra="moerl-operator",
                )
                session = boto3.Session(region_name=self._region)
                self._clients[service] = session.client(service, config=config, endpoint_url=self._endpoint)
            return self._clients[service]


def api_name(operation: str) -> str:
    """AWS's own name of an operation, as its documentation, policies and CloudTrail have it."""
    return "".join(word.capitalize() for word in operation.split("_"))
