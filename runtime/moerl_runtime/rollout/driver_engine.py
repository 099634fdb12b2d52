"""The driver's client of its engine, over the pod's loopback."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from . import protocol
from .protocol import AbortRequest, ErrorReply, GenerateRequest, GenerateResponse, LoadRequest, VersionReport

GENERATE_SECONDS = 1800.0
"""Deadline of one generate request: far above any real one, so that a hung engine is noticed at all."""
LOAD_SECONDS = 600.0
COMMAND_SECONDS = 30.0

M = TypeVar("M", bound=BaseModel)


class EngineUnavailable(RuntimeError):
    """The engine cannot serve now (503, a broken connection or a deadline): try again later, maybe after a load."""


class EngineRefused(RuntimeError):
    """The engine will never serve this request (400), or ran it and failed (500)."""


class EngineClient:
    """One engine. Every method has a deadline and raises EngineUnavailable or EngineRefused."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def wait_healthy(self) -> None:
        """Return once the engine takes requests. No deadline: the pod's own probes have one."""
        delay = 0.1
        while True:
            try:
                await self._call("GET", protocol.HEALTH, None, seconds=5.0)
                return
            except (EngineUnavailable, EngineRefused):
                await asyncio.sleep(delay)
                delay = min(delay * 1.5, 2.0)

    async def version(self) -> VersionReport:
        """What the engine serves."""
        return _parsed(VersionReport, await self._call("GET", protocol.VERSION, None, seconds=COMMAND_SECONDS))

    async def load(self, folder: Path, version: int) -> VersionReport:
        """Load a Hugging Face folder as `version`."""
        request = LoadRequest(path=str(folder), version=version)
        return _parsed(VersionReport, await self._call("POST", protocol.LOAD_WEIGHTS, request, seconds=LOAD_SECONDS))

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Generate; EngineRefused also when the answer is not what was asked for."""
        answer = await self._call("POST", protocol.GENERATE, request, seconds=GENERATE_SECONDS)
        response = _parsed(GenerateResponse, answer)
        fault = _fault(request, response)
        if fault:
            raise EngineRefused(f"the engine's answer cannot be used: {fault}")
        return response

    async def abort(self) -> None:
        """End all running requests."""
        await self._call("POST", protocol.ABORT, AbortRequest(), seconds=COMMAND_SECONDS)

    async def _call(self, method: str, path: str, body: BaseModel | None, *, seconds: float) -> bytes:
        data = None if body is None else body.model_dump_json().encode()
        headers = {"Content-Type": "application/json"} if data else None
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._session.request(
                method, self._url + path, data=data, headers=headers, timeout=timeout
            ) as answer:
                content = await answer.read()
                status = answer.status
        except TimeoutError as error:
            raise EngineUnavailable(f"the engine did not answer {path} within {seconds:.0f} s") from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"the engine at {self._url} cannot be reached: {error}") from error
        if status == 200:
            return content
        raise _refusal(path, status, content)


def _fault(request: GenerateRequest, response: GenerateResponse) -> str:
    """Why an answer must not be trained on; empty when it may."""
    wanted = len(request.input_ids) * request.n
    if len(response.sequences) != wanted:
        return f"{len(response.sequences)} sequences where {wanted} were asked for"
    for sequence in response.sequences:
        if not len(sequence.output_ids) == len(sequence.logprobs) == len(sequence.versions):
            return "a sequence whose ids, log-probabilities and versions differ in length"
        if not math.isfinite(sum(sequence.logprobs)):
            return "a log-probability that is no finite number"
        if sequence.versions and min(sequence.versions) < (request.min_version or 0):
            return f"tokens of version {min(sequence.versions)} where {request.min_version} was the oldest admitted"
    return ""


def _refusal(path: str, status: int, content: bytes) -> RuntimeError:
    try:
        reply = ErrorReply.model_validate_json(content)
        message = f"the engine refused {path}: {reply.code}: {reply.message}"
    except ValidationError:
        message = f"the engine answered {path} with {status}"
    return EngineUnavailable(message) if status == 503 else EngineRefused(message)


def _parsed(model: type[M], content: bytes) -> M:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise EngineRefused(f"the engine's answer is no {model.__name__}: {error.errors()[0]['msg']}") from error
