"""The native rollout engine: an HTTP server of `rollout.protocol` around a `transformers` model.

Listens on the pod's loopback; the driver beside it is its only client. Run as `python -m moerl_runtime engine`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

import torch
from aiohttp import web
from pydantic import BaseModel, ValidationError

from moerl_operator.api import names
from moerl_runtime.config import Settings
from moerl_runtime.web import INTERRUPTED, MAX_BODY_BYTES, stop_event

from . import protocol
from .engine_core import EngineCore, Refused

log = logging.getLogger(__name__)

_Message = TypeVar("_Message", bound=BaseModel)


def application(core: EngineCore) -> web.Application:
    """The protocol's routes over one core."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors(core)])

    async def generate(request: web.Request) -> web.Response:
        return _json(await core.generate(await _body(request, protocol.GenerateRequest)))

    async def abort(request: web.Request) -> web.Response:
        wanted = await _body(request, protocol.AbortRequest)
        return _json(protocol.Ack(count=core.abort(wanted.request_ids)))

    async def pause(_: web.Request) -> web.Response:
        return _json(protocol.Ack(count=core.pause()))

    async def resume(_: web.Request) -> web.Response:
        core.resume()
        return _json(protocol.Ack())

    async def load(request: web.Request) -> web.Response:
        return _json(await core.load(await _body(request, protocol.LoadRequest)))

    async def version(_: web.Request) -> web.Response:
        return _json(core.report)

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=200 if core.healthy else 503, text=core.state)

    app.add_routes(
        [
            web.post(protocol.GENERATE, generate),
            web.post(protocol.ABORT, abort),
            web.post(protocol.PAUSE, pause),
            web.post(protocol.CONTINUE, resume),
            web.post(protocol.LOAD_WEIGHTS, load),
            web.get(protocol.VERSION, version),
            web.get(protocol.HEALTH, health),
        ]
    )
    return app


async def serve(*, host: str, port: int) -> int:
    """Serve until SIGTERM or SIGINT, then end running requests as aborted; returns the exit code 143."""
    stop = stop_event()
    core = EngineCore()
    core.start()
    runner = web.AppRunner(application(core), access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    log.info("engine listens on %s:%d", host, port)
    await stop.wait()
    await core.stop()
    await runner.cleanup()
    return INTERRUPTED


def main() -> int:
    """Entry point of the engine container. Listens where the driver looks for it, MOERL_ENGINE_URL."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    place = urlsplit(Settings.from_env().engine_url)
    host, port = place.hostname or "127.0.0.1", place.port or names.PORT_ENGINE
    try:
        return asyncio.run(serve(host=host, port=port))
    except OSError as error:
        log.error("the engine cannot listen on %s:%d: %s; set another MOERL_ENGINE_URL", host, port, error.strerror)
        return 1


def _errors(core: EngineCore) -> Callable[..., Awaitable[web.StreamResponse]]:
    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refusal:
            reply = protocol.ErrorReply(code=refusal.code, message=refusal.message, version=core.report.version)
            return _json(reply, status=refusal.code.status)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            message = f"{where}: {first['msg']}" if where else first["msg"]
            return _json(protocol.ErrorReply(code=protocol.ErrorCode.INVALID, message=message), status=400)

    return middleware


async def _body(request: web.Request, kind: type[_Message]) -> _Message:
    return kind.model_validate_json(await request.read() or b"{}")


def _json(message: BaseModel, *, status: int = 200) -> web.Response:
    return web.Response(body=message.model_dump_json().encode(), status=status, content_type="application/json")
