"""Sees every byte of the watch streams go by, so that a stream which nobody reads any more is noticed.

kopf hands events to handlers but not bookmarks, and an idle cluster has no events for hours: only the bytes
tell a quiet stream from a dead one. The session made here is given to kopf (its AiohttpSession login).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp


class StreamAges:
    """When each watched collection last showed a sign of life."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def touch(self, plural: str) -> None:
        """A byte arrived, or the stream was opened."""
        self._seen[plural] = asyncio.get_running_loop().time()

    def ages(self) -> dict[str, float]:
        """Seconds since the last sign of life, by plural. A collection of several namespaces counts as one."""
        now = asyncio.get_running_loop().time()
        return {plural: now - seen for plural, seen in self._seen.items()}

    def session(self, **options: Any) -> aiohttp.ClientSession:
        """A client session whose watch responses report here."""
        ages = self

        class WatchedResponse(aiohttp.ClientResponse):
            """A response that notes when chunks of a watch are read."""

            async def start(self, connection: Any) -> aiohttp.ClientResponse:
                await super().start(connection)
                if "watch" in self.url.query and self.status == 200:
                    plural = self.url.path.rsplit("/", 1)[-1]
                    ages.touch(plural)
                    self.content = _Noted(self.content, ages, plural)  # type: ignore[assignment]
                return self

        return aiohttp.ClientSession(response_class=WatchedResponse, **options)


class _Noted:
    """A stream reader that reports each chunk; everything else is the reader's own."""

    def __init__(self, content: aiohttp.StreamReader, ages: StreamAges, plural: str) -> None:
        self._content = content
        self._ages = ages
        self._plural = plural

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for chunk in self._content.iter_chunked(size):
            self._ages.touch(self._plural)
            yield chunk
