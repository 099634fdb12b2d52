"""moto behind the same port: S3, SQS and EventBridge are right there, so they are not written again.

It holds everything in memory: buckets are copied to disk (bucket_mirror.py), queues end with the emulator.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from botocore.exceptions import BotoCoreError, ClientError
from yarl import URL

from .bucket_mirror import BucketMirror
from .world import ACCOUNT

log = logging.getLogger("moerl_local.aws")

SERVICES = ("s3", "sqs", "events")
BUCKET = "moerl"
_COPY_S = 1.0  # from a write to its copy on disk
_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade",
        "transfer-encoding", "expect"}  # fmt: skip


class MotoProxy:
    """Starts moto on a loopback port when it is first needed, and passes requests through unchanged.

    With a folder the buckets are kept there over restarts.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._server: Any = None
        self._base = ""
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()
        self._folder = folder
        self._mirror: BucketMirror | None = None
        self._written = asyncio.Event()
        self._copying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, restore the buckets and make the pre-made one; does nothing where it runs already."""
        async with self._lock:
            if self._session is not None:
                return
            self._server = await asyncio.to_thread(self._start_server)
            host, port = self._server.get_host_and_port()
            self._base = f"http://{host}:{port}"
            session = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
            if self._folder is not None:
                self._mirror = await asyncio.to_thread(BucketMirror, self._folder, self._base)
                await asyncio.to_thread(self._mirror.restore)
                self._copying = asyncio.create_task(self._copy_for_ever(self._mirror))
            await self._make_bucket(session)
            self._session = session

    async def _copy_for_ever(self, mirror: BucketMirror) -> None:
        while True:
            await self._written.wait()
            await asyncio.sleep(_COPY_S)
            await self._copy(mirror)

    async def _copy(self, mirror: BucketMirror) -> None:
        self._written.clear()
        try:
            await asyncio.to_thread(mirror.sync)
        except (OSError, BotoCoreError, ClientError) as error:
            log.warning("the buckets could not be copied to %s: %s", self._folder, error)

    @staticmethod
    def _start_server() -> Any:
        os.environ.setdefault("MOTO_ACCOUNT_ID", ACCOUNT)  # read by moto when it is first imported
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        return server

    async def _make_bucket(self, session: aiohttp.ClientSession) -> None:
        scope = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        async with session.put(f"{self._base}/{BUCKET}", headers={"Authorization": scope}) as answer:
            answer.raise_for_status()

    async def reset(self) -> None:
        """Empty it, where it runs."""
        if self._session is not None:
            async with self._session.post(f"{self._base}/moto-api/reset") as answer:
                answer.raise_for_status()
            await self._make_bucket(self._session)
            self._written.set()

    async def close(self) -> None:
        """Copy what is not copied yet, and stop it."""
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)
        if self._mirror is not None and self._written.is_set():
            await self._copy(self._mirror)
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
            URL(self._base + request.raw_path, encoded=True),
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
            if request.method not in ("GET", "HEAD"):
                self._written.set()
            return response
