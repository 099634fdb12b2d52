"""moto behind the same port: S3, SQS and EventBridge are right there, so they are not written again.

What it holds is in memory and ends with the emulator; `/_moerl/reset` empties it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import aiohttp
from aiohttp import web

from .world import ACCOUNT

SERVICES = ("s3", "sqs", "events")
BUCKET = "moerl"
_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade",
        "transfer-encoding", "expect"}  # fmt: skip


class MotoProxy:
    """Starts moto on a loopback port when it is first needed, and passes requests through unchanged."""

    def __init__(self) -> None:
        self._server: Any = None
        self._base = ""
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Start it and make the pre-made bucket; does nothing where it runs already."""
        async with self._lock:
            if self._server is not None:
                return
            self._server = await asyncio.to_thread(self._start_server)
            host, port = self._server.get_host_and_port()
            self._base = f"http://{host}:{port}"
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(auto_decompress=False, timeout=timeout)
            await self._make_bucket()

    @staticmethod
    def _start_server() -> Any:
        os.environ.setdefault("MOTO_ACCOUNT_ID", ACCOUNT)  # read by moto when it is first imported
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        return server

    async def _make_bucket(self) -> None:
        scope = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        assert self._session is not None
        async with self._session.put(f"{self._base}/{BUCKET}", headers={"Authorization": scope}) as answer:
            answer.raise_for_status()

    async def reset(self) -> None:
        """Empty it, where it runs."""
        if self._session is not None:
            async with self._session.post(f"{self._base}/moto-api/reset") as answer:
                answer.raise_for_status()
            await self._make_bucket()

    async def close(self) -> None:
        """Stop it."""
        if self._session is not None:
            await self._session.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Pass one request through, bodies streamed both ways."""
        await self.start()
        assert self._session is not None
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        body = request.content if request.body_exists else None
        async with self._session.request(
            request.method,
            # The raw path: S3 keys are signed and stored as they were escaped.
            _verbatim(self._base + request.raw_path),
            headers=headers,
            data=body,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        ) as answer:
            response = web.StreamResponse(status=answer.status, reason=answer.reason)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP | {"date", "server"}:
                    response.headers.add(name, value)
            await response.prepare(request)
            if request.method != "HEAD":
                async for chunk in answer.content.iter_chunked(1 << 18):
                    await response.write(chunk)
            await response.write_eof()
            return response


def _verbatim(url: str) -> Any:
    from yarl import URL

    return URL(url, encoded=True)
