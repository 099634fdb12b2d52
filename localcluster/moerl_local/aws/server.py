"""The HTTP side: one port, a request goes to the service in its signature's credential scope."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import deque
from typing import Any

from aiohttp import web

from .account import OURS, Account, Call
from .faults import parse_fault
from .moto_proxy import SERVICES as MOTOS
from .moto_proxy import MotoProxy
from .wire.render import Answer
from .world import REGION

log = logging.getLogger("moerl_local.aws")
_SCOPE = re.compile(r"Credential=([^/,\s]+)/(\d{8})/([^,\s]+)/aws4_request")
_MAX_BODY = 8 << 20  # of the services that are ours; S3 bodies are streamed


class Server:
    """The aiohttp application around one account."""

    def __init__(self, account: Account, moto: MotoProxy, *, joiner: Any = None) -> None:
        self.account = account
        self.moto = moto
        self._joiner = joiner
        self._calls: deque[dict[str, Any]] = deque(maxlen=20_000)
        self._wake = asyncio.Event()
        self.app = web.Application(client_max_size=_MAX_BODY)
        control = "/_moerl"
        self.app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get(f"{control}/state", self._state),
                web.get(f"{control}/calls", self._list_calls),
                web.get(f"{control}/clock", self._read_clock),
                web.post(f"{control}/clock", self._advance),
                web.get(f"{control}/faults", self._list_faults),
                web.post(f"{control}/faults", self._add_fault),
                web.delete(f"{control}/faults", self._remove_faults),
                web.delete(f"{control}/faults/{{id}}", self._remove_faults),
                web.post(f"{control}/reset", self._reset),
                web.route("*", "/{path:.*}", self._aws),
            ]
        )

    def changed(self) -> None:
        """Something happened in the account: the clock's loop and the joiner look again."""
        self._wake.set()
        if self._joiner is not None:
            self._joiner.wake()

    async def run_clock(self) -> None:
        """Let time pass for ever, waking at the moments that are due."""
        while True:
            self._wake.clear()
            self.account.advance()
            due = self.account.simulation.next_due()
            wait = self.account.clock.wall_seconds_until(due) if due is not None else None
            try:
                await asyncio.wait_for(self._wake.wait(), None if wait is None else max(wait, 0.01))
            except TimeoutError:
                continue

    # --- AWS -----------------------------------------------------------------------------------------------------

    async def _aws(self, request: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        found = _SCOPE.search(_signature(request))
        if found is None:
            return _plain(403, "MissingAuthenticationToken", "Missing Authentication Token")
        access_key, _, scope = found.groups()
        *regions, service_name = scope.split("/")
        region = regions[0] if regions else REGION
        if service_name in MOTOS:
            return await self._moto(request, service_name, access_key, started)
        if service_name not in OURS:
            known = ", ".join([*OURS, *MOTOS])
            return _plain(501, "UnsupportedService", f"This emulator has no {service_name}; it has {known}.")
        call = Call(
            service=service_name,
            region=region,
            access_key=access_key,
            method=request.method,
            raw_path=request.raw_path.split("?")[0],
            query=request.rel_url.raw_query_string,
            body=await request.read(),
        )
        action = self.account.action_of(call)
        await self._delay(service_name, action)
        answer = self.account.answer(call)
        lost = self.account.faults.take("lost-answer", service=service_name, action=action)
        self._note(service_name, action, answer.status, answer.code, started)
        if lost is not None and request.transport is not None:
            request.transport.close()  # done, but the caller never learns of it
        return _response(answer)

    async def _moto(
        self, request: web.Request, service_name: str, access_key: str, started: float
    ) -> web.StreamResponse:
        action = request.headers.get("X-Amz-Target", request.method).rsplit(".", 1)[-1]
        await self._delay(service_name, action)
        injected = self.account.faults.call_error(service_name, action, access_key)
        if injected is not None:
            status = injected.status or 400
            code = (
                {"Throttling": "SlowDown"}.get(injected.code, injected.code) if service_name == "s3" else injected.code
            )
            if service_name == "s3" and code == "SlowDown":
                status = 503
            self._note(service_name, action, status, code, started)
            return _plain(status, code, injected.message, xml=service_name == "s3")
        response = await self.moto.forward(request)
        self._note(service_name, action, response.status, "", started)
        return response

    async def _delay(self, service_name: str, action: str) -> None:
        slow = self.account.faults.take("slow", service=service_name, action=action)
        if slow is not None:
            await asyncio.sleep(slow.seconds)

    def _note(self, service_name: str, action: str, status: int, code: str, started: float) -> None:
        entry = {
            "time": round(time.time(), 3),
            "service": service_name,
            "action": action,
            "status": status,
            "code": code,
            "ms": round((time.monotonic() - started) * 1000, 1),
        }
        self._calls.append(entry)
        log.info(json.dumps(entry))

    # --- for tests and people ------------------------------------------------------------------------------------

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _state(self, request: web.Request) -> web.Response:
        account = self.account
        account.simulation.settle()
        state = account.world.model_dump()
        state["now"] = account.clock.now()
        state["leftovers"] = account.world.leftovers()
        return web.json_response(state)

    async def _list_calls(self, request: web.Request) -> web.Response:
        return web.json_response({"calls": list(self._calls)})

    async def _read_clock(self, request: web.Request) -> web.Response:
        clock = self.account.clock
        scale = None if clock.manual else self.account.settings.time_scale
        return web.json_response({"now": clock.now(), "manual": clock.manual, "timeScale": scale,
                                  "nextDue": self.account.simulation.next_due()})  # fmt: skip

    async def _advance(self, request: web.Request) -> web.Response:
        document = await _document(request)
        seconds = document.get("advanceSeconds")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 1e9:
            return _bad('advanceSeconds must be a number of emulated seconds from 0 to 1e9, as {"advanceSeconds": 300}')
        self.account.advance(float(seconds))
        self.changed()
        if self._joiner is not None:
            await self._joiner.settle()
        return await self._read_clock(request)

    async def _list_faults(self, request: web.Request) -> web.Response:
        return web.json_response({"faults": [fault.document() for fault in self.account.faults.all()]})

    async def _add_fault(self, request: web.Request) -> web.Response:
        try:
            fault = parse_fault(await _document(request))
        except ValueError as error:
            return _bad(str(error))
        self.account.faults.add(fault)
        self.account.save()
        return web.json_response(fault.document(), status=201)

    async def _remove_faults(self, request: web.Request) -> web.Response:
        removed = self.account.faults.remove(request.match_info.get("id"))
        self.account.save()
        if "id" in request.match_info and not removed:
            return web.json_response({"error": f"there is no fault {request.match_info['id']}"}, status=404)
        return web.json_response({"removed": removed})

    async def _reset(self, request: web.Request) -> web.Response:
        self.account.reset()
        self._calls.clear()
        await self.moto.reset()
        self.changed()
        if self._joiner is not None:
            await self._joiner.settle()
        return web.json_response({"status": "ok"})


def _signature(request: web.Request) -> str:
    """Where the request's credential stands: the header, or a signed link of either generation."""
    header = request.headers.get("Authorization", "")
    if header:
        return header
    if "X-Amz-Credential" in request.query:
        return f"Credential={request.query['X-Amz-Credential']}"
    if "AWSAccessKeyId" in request.query:  # version 2, which boto3 still writes into links, is S3's alone
        return f"Credential={request.query['AWSAccessKeyId']}/00000000/{REGION}/s3/aws4_request"
    return ""


async def _document(request: web.Request) -> dict[str, Any]:
    try:
        document = await request.json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def _bad(message: str) -> web.Response:
    return web.json_response({"error": message}, status=400)


def _response(answer: Answer) -> web.Response:
    headers = answer.headers | {"Content-Type": answer.content_type}
    return web.Response(status=answer.status, body=answer.body, headers=headers)


def _plain(status: int, code: str, message: str, *, xml: bool = False) -> web.Response:
    """An error outside any service's protocol: JSON with the header that clients read, or S3's XML."""
    headers = {"x-amzn-ErrorType": code}
    if xml:
        text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        return web.Response(status=status, text=text, content_type="application/xml", headers=headers)
    return web.json_response({"__type": code, "message": message}, status=status, headers=headers)


async def serve(server: Server, *, bind: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns the runner (for clean-up) and the port. Raises OSError where the port is taken."""
    runner = web.AppRunner(server.app, access_log=None, auto_decompress=False, shutdown_timeout=3)
    await runner.setup()
    site = web.TCPSite(runner, bind, port)
    await site.start()
    sockets = runner.addresses
    return runner, int(sockets[0][1])
