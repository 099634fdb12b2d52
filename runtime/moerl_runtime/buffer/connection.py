"""Connecting to the buffer's server and running its scripts, one call per group, many calls per round trip."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from . import scripts
from .model import BufferFault

BASE = "moerl"
"""Front of every key. One server set belongs to one job, so the job's name need not be in it."""

log = logging.getLogger(__name__)

_SAY_SECONDS = 15.0
_RETRIES = 8
_SOCKET_SECONDS = 30.0


async def open_redis(url: str, password: str | None, *, timeout_seconds: float) -> Redis:
    """A client of a server that answers. BufferFault after `timeout_seconds`, or at once on a wrong password.

    Every command may be repeated after a lost answer: the scripts are idempotent or their repetition is harmless.
    """
    try:
        async with asyncio.timeout(timeout_seconds), _client(url, password, retries=0) as probe:
            await _wait(probe, _place(url))
    except TimeoutError as error:
        raise BufferFault(f"no buffer answered at {_place(url)} within {timeout_seconds:.0f} s") from error
    except (AuthenticationError, ResponseError) as error:
        raise BufferFault(f"the buffer at {_place(url)} refused the password: check MOERL_BUFFER_PASSWORD") from error
    return _client(url, password, retries=_RETRIES)


def _client(url: str, password: str | None, *, retries: int) -> Redis:
    return Redis.from_url(
        url,
        password=password or None,
        retry=Retry(ExponentialBackoff(cap=2.0, base=0.05), retries),
        retry_on_error=[RedisConnectionError, RedisTimeoutError, BusyLoadingError],
        socket_timeout=_SOCKET_SECONDS,
        socket_connect_timeout=5.0,
        health_check_interval=30,
    )


async def _wait(probe: Redis, place: str) -> None:
    began = said = time.monotonic()
    while True:
        try:
            await cast("Awaitable[bool]", probe.ping())
            return
        except AuthenticationError:
            raise
        except (RedisConnectionError, RedisTimeoutError, BusyLoadingError, OSError) as error:
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                log.warning("no buffer at %s yet after %.0f s: %s", place, said - began, error)
            await asyncio.sleep(0.3)


def _place(url: str) -> str:
    return url.rsplit("@", 1)[-1].removeprefix("redis://")


async def run(redis: Redis, name: scripts.Name, calls: Sequence[Sequence[str | int | float]]) -> list[Any]:
    """Run one script for each argument list, in order, in one round trip; the answers in order.

    A server that does not know the script (first use, or restarted) executed nothing: it gets the text, then a retry.
    """
    answers: list[Any] = [None] * len(calls)
    todo = list(range(len(calls)))
    for _ in range(3):
        pipe = redis.pipeline(transaction=False)
        for i in todo:
            pipe.evalsha(scripts.digest(name), 1, BASE, *calls[i])
        for i, answer in zip(todo, await pipe.execute(raise_on_error=False), strict=True):
            answers[i] = answer
        todo = [i for i in todo if isinstance(answers[i], NoScriptError)]
        if not todo:
            break
        await redis.script_load(scripts.source(name))
    for answer in answers:
        if isinstance(answer, RedisError):
            raise BufferFault(f"buffer script {name}: {answer}") from answer
        if isinstance(answer, Exception):
            raise answer
    return answers


P = ParamSpec("P")
T = TypeVar("T")


def reachable(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Wraps a client's method: a server that cannot be reached, or refuses a command, is a BufferFault."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except RedisError as error:
            raise BufferFault(f"the buffer cannot be used now: {error}") from error

    return call


def text(value: Any) -> str:
    """A server string as str."""
    return value.decode() if isinstance(value, bytes) else str(value)
