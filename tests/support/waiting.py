"""Waiting for a fact of a live system, with a message that says what was there instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(what: str, probe: Callable[[], Awaitable[Any]], *, seconds: float = 60, every: float = 0.25) -> Any:
    """The first truthy value of `probe`.

    Raises:
        AssertionError: none came within `seconds`; the message holds the last value.
    """
    deadline = time.monotonic() + seconds
    while True:
        last = await probe()
        if last:
            return last
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s; last seen: {last!r}")
        await asyncio.sleep(every)


async def stays(what: str, probe: Callable[[], Awaitable[Any]], *, seconds: float, every: float = 0.5) -> None:
    """Asserts that `probe` is truthy all the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        last = await probe()
        assert last, f"{what}: ended after {seconds - (deadline - time.monotonic()):.1f} s; seen: {last!r}"
        await asyncio.sleep(every)
