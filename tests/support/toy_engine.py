"""A real server of the engine protocol with a toy policy: exact, deterministic and without torch.

The toy "weights" are one number in the folder's config.json. Its policy answers the letters reversed from version
`good_from` on, before that it repeats the first letter. It keeps the protocol: not ready before a load, 503
below min_version, versions reported per token.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from moerl_runtime.rollout import protocol
from moerl_runtime.rollout.protocol import (
    Ack,
    EngineState,
    ErrorCode,
    ErrorReply,
    GenerateRequest,
    GenerateResponse,
    LoadRequest,
    Sequence,
    VersionReport,
)


class ToyEngine:
    """State that tests look at and turn: `delay` seconds a request, `refuse` with a code,
    `fail_loads` times, `bend` fields of the answers."""

    def __init__(self, *, good_from: int = 0) -> None:
        self.version: int | None = None
        self.served: list[tuple[int, int]] = []
        self.loaded: list[int] = []
        self.delay = 0.0
        self.fail_loads = 0
        self.refuse: ErrorCode | None = None
        self.good_from = good_from
        self.requests = 0
        self.bend: dict[str, Any] = {}
        self._abort = asyncio.Event()

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application()
        routes: list[tuple[str, str, Callable[[web.Request], Awaitable[web.Response]]]] = [
            ("POST", protocol.GENERATE, self._generate),
            ("POST", protocol.ABORT, self._aborted),
            ("POST", protocol.LOAD_WEIGHTS, self._load),
            ("GET", protocol.VERSION, self._report),
            ("GET", protocol.HEALTH, self._report),
        ]
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        return app

    async def _generate(self, request: web.Request) -> web.Response:
        message = GenerateRequest.model_validate_json(await request.read())
        self.requests += 1
        if self.refuse:
            return self._no(self.refuse, "as the test asked")
        if self.version is None:
            return self._no(ErrorCode.NOT_READY, "no weights")
        if message.min_version is not None and self.version < message.min_version:
            return self._no(ErrorCode.VERSION_TOO_OLD, f"{self.version} < {message.min_version}")
        reason = "length"
        if self.delay:
            self._abort.clear()
            try:
                await asyncio.wait_for(self._abort.wait(), self.delay)
                reason = "abort"
            except TimeoutError:
                pass
        self.served.append((self.version, len(message.input_ids)))
        sequences = [self._answer(prompt, reason) for prompt in message.input_ids for _ in range(message.n)]
        return _json(GenerateResponse(sequences=sequences))

    def _answer(self, prompt: list[int], reason: str) -> Sequence:
        assert self.version is not None
        letters = prompt[1:-1]
        output = letters[::-1] if self.version >= self.good_from else letters[:1] * len(letters)
        fields: dict[str, Any] = {
            "output_ids": output,
            "logprobs": [-0.5] * len(output),
            "versions": [self.version] * len(output),
            "version_start": self.version,
            "version_end": self.version,
            "finish_reason": reason,
        }
        return Sequence.model_validate(fields | self.bend)

    async def _aborted(self, _: web.Request) -> web.Response:
        self._abort.set()
        return _json(Ack())

    async def _load(self, request: web.Request) -> web.Response:
        message = LoadRequest.model_validate_json(await request.read())
        if self.fail_loads:
            self.fail_loads -= 1
            self.version = None
            return self._no(ErrorCode.FAILED, "as the test asked")
        toy = json.loads((Path(message.path) / "config.json").read_text())
        assert toy["version"] == message.version
        assert (Path(message.path) / "model.safetensors").stat().st_size > 8
        self.version = message.version
        self.loaded.append(message.version)
        return await self._report(request)

    async def _report(self, _: web.Request) -> web.Response:
        state = EngineState.EMPTY if self.version is None else EngineState.READY
        return _json(VersionReport(version=self.version, state=state))

    def _no(self, code: ErrorCode, message: str) -> web.Response:
        return _json(ErrorReply(code=code, message=message, version=self.version), status=code.status)


def _json(message: BaseModel, *, status: int = 200) -> web.Response:
    return web.Response(text=message.model_dump_json(), status=status, content_type="application/json")
