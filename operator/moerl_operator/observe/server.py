"""/healthz, /readyz and /metrics on one port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from moerl_operator.observe.health import Health
from moerl_operator.observe.metrics import Metrics


@asynccontextmanager
async def serving(*, host: str, port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve for the life of the block; gives the port (useful with port 0). Raises OSError when it is taken."""

    async def healthz(request: web.Request) -> web.Response:
        return _answer(health.live_problems())

    async def readyz(request: web.Request) -> web.Response:
        return _answer(health.ready_problems())

    async def metrics_page(request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics_page)],
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _answer(problems: list[str]) -> web.Response:
    if problems:
        return web.Response(status=503, text="".join(f"{problem}\n" for problem in problems))
    return web.Response(text="ok\n")
