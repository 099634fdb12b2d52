"""Health, readiness, metrics and the end of a process, the same for every light process of the data plane.

SIGTERM is an interruption, never a success: the process finishes what it must and exits 143, because Kubernetes
counts an Indexed Job's pod that exits 0 as done.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .config import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

INTERRUPTED = 143
"""Exit code after SIGTERM (128 + 15)."""

SHUTDOWN_SECONDS = 3.0
MAX_BODY_BYTES = 256 * 1024 * 1024
"""A group of 16 x 16384 token ids as JSON is about 2 MiB; the bound only keeps a mistake from filling memory."""

Ready = Callable[[], str]
"""Why the process is not ready; empty when it is."""


def application(*, registry: CollectorRegistry, ready: Ready) -> web.Application:
    """An app that answers /healthz (the loop turns), /readyz (503 with the reason) and /metrics."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


@asynccontextmanager
async def serving(app: web.Application, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port (a free one for port 0). ConfigError if the port is taken."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, reuse_address=True).start()
        except OSError as error:
            why = f"{error.strerror}; another process may hold the port"
            raise ConfigError(f"{host}:{port} cannot be served: {why}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def stop_event() -> asyncio.Event:
    """Set by SIGTERM or SIGINT from here on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until_stopped(work: Awaitable[T], stop: asyncio.Event) -> T | None:
    """The result of `work`, its failure (raised), or None once `stop` is set (then it is cancelled and awaited)."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return None if task.cancelled() else task.result()
