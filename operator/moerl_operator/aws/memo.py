"""Answers of AWS kept for seconds, so that a storm of events does not become a storm of describe calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Memo:
    """Values by key with a time to live; concurrent askers of one key share one question. Errors are not kept."""

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[float, Any]] = {}
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, ttl: float | Callable[[T], float], ask: Callable[[], Awaitable[T]]) -> T:
        """The value of `key`, asked for when there is none younger than `ttl` seconds (a number, or by value)."""
        now = asyncio.get_running_loop().time()
        until, value = self._values.get(key, (0.0, None))
        if now < until:
            return cast(T, value)
        task = self._asking.get(key)
        if task is None:
            task = asyncio.ensure_future(self._ask(key, ttl, ask))
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return cast(T, await asyncio.shield(task))

    def forget(self, *keys: Hashable) -> None:
        """What was known is out of date: a question already under way does not count either."""
        for key in keys:
            self._values.pop(key, None)
            self._asking.pop(key, None)

    async def _ask(self, key: Hashable, ttl: float | Callable[[T], float], ask: Callable[[], Awaitable[T]]) -> T:
        value = await ask()
        life = ttl(value) if callable(ttl) else ttl
        if self._asking.get(key) is asyncio.current_task():
            self._values[key] = (asyncio.get_running_loop().time() + life, value)
        return value
