"""The emulated account: from a request's parts to an answer, without any HTTP library.

One call runs from start to end in one go (no await), so every operation is atomic and the clock stands still in it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from botocore import xform_name

from .autoscaling import AutoScaling
from .clock import Clock, ManualClock, ScaledClock
from .ec2 import Ec2
from .eks import Eks
from .errors import AwsError
from .faults import Faults
from .simulation import Simulation
from .sts import Sts
from .timings import Timings
from .wire import check, parse, render
from .wire.models import Service, service
from .wire.render import Answer
from .world import LOCAL_TYPE, REGION, Store, World

log = logging.getLogger("moerl_local.aws")
OURS = ("eks", "autoscaling", "ec2", "sts")


@dataclass(frozen=True, slots=True)
class Settings:
    """How an emulator is started."""

    cluster_name: str = "moerl-local"
    cluster_endpoint: str = "https://127.0.0.1:6443"
    state_dir: Path | None = None
    time_scale: float = 60.0
    manual_clock: bool = False
    has_cluster: bool = False
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a service of ours, as HTTP brought it."""

    service: str
    region: str
    access_key: str
    method: str
    raw_path: str
    query: str
    body: bytes


class Account:
    """World, clock, faults and services of one emulator."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = Store(settings.state_dir)
        self._start(self._store.load())
        self.on_change: Callable[[], None] = lambda: None

    def _start(self, world: World) -> None:
        settings = self.settings
        self.world = world
        self.clock: Clock = (
            ManualClock(start=world.now) if settings.manual_clock else ScaledClock(settings.time_scale, start=world.now)
        )
        self.faults = Faults(world)
        self.simulation = Simulation(world, self.clock, self.faults, settings.timings, has_cluster=settings.has_cluster)
        eks = Eks(
            world,
            self.clock,
            self.faults,
            settings.timings,
            cluster=settings.cluster_name,
            endpoint=settings.cluster_endpoint,
        )
        self._services: dict[str, Any] = {
            "eks": eks,
            "autoscaling": AutoScaling(world, self.clock, self.simulation, settings.timings),
            "ec2": Ec2(world, self.clock, self.simulation),
            "sts": Sts(),
        }

    def reset(self) -> None:
        """An empty account. Label keys on the real node are remembered until the joiner has taken them off."""
        self._start(World(now=self.clock.now(), local_labels=self.world.local_labels))
        self.save()
        self.on_change()

    def save(self) -> None:
        """Write the state down, where there is a folder for it."""
        self.world.now = self.clock.now()
        self._store.save(self.world)

    def advance(self, seconds: float = 0.0) -> None:
        """Let emulated time pass and everything happen that is due."""
        target = self.clock.now() + seconds
        if seconds and isinstance(self.clock, ScaledClock):
            self.clock.jump(seconds)
        before = self.world.model_dump_json(exclude={"now"})
        self.simulation.advance(max(target, self.clock.now()) if not self.clock.manual else target)
        if self.world.model_dump_json(exclude={"now"}) != before:
            self.save()
            self.on_change()

    def action_of(self, call: Call) -> str:
        """The operation that a request names, empty where it names none."""
        model = service(call.service)
        if model.protocol == "rest-json":
            found = model.match(call.method, call.raw_path)
            return found[0] if found else ""
        return _form(call).get("Action", "")

    def answer(self, call: Call) -> Answer:
        """Do what a request asks."""
        model, request_id = service(call.service), str(uuid.uuid4())
        action = self.action_of(call)
        try:
            self._refuse_before(model, call, action)
            operation = model.operation(action)
            handler = getattr(self._services[call.service], xform_name(action), None) if operation else None
            if operation is None or handler is None:
                raise _unknown_action(call.service, action, known=operation is not None)
            params = _parameters(model, operation, call)
            self.simulation.settle()  # so that the call meets the world of this moment
            members = handler(params)
            self.simulation.settle()
            if not action.startswith(("Describe", "List", "Get")):
                self.save()
                self.on_change()
            return render.result(model, operation, members, request_id)
        except AwsError as problem:
            return render.error(model, problem, request_id)
        except Exception:
            log.exception("the emulator failed in %s %s", call.service, action)
            own = AwsError("InternalFailure", "The emulator failed; its log says where.", status=500)
            return render.error(model, own, request_id)

    def _refuse_before(self, model: Service, call: Call, action: str) -> None:
        if call.region != REGION:
            code = "InvalidSignatureException" if model.protocol == "rest-json" else "SignatureDoesNotMatch"
            text = f"Credential should be scoped to a valid region, not '{call.region}'."
            raise AwsError(code, text, status=403)
        injected = self.faults.call_error(call.service, action, call.access_key)
        if injected is not None:
            raise injected


def _form(call: Call) -> dict[str, str]:
    text = call.body.decode(errors="replace") if call.method == "POST" else call.query
    return dict(parse_qsl(text, keep_blank_values=True))


def _parameters(model: Service, operation: Any, call: Call) -> dict[str, Any]:
    try:
        if model.protocol == "rest-json":
            found = model.match(call.method, call.raw_path)
            path = found[1] if found else {}
            params = parse.rest_json(operation, path, parse_qs(call.query, keep_blank_values=True), call.body)
        else:
            params = parse.query(operation, _form(call), ec2=model.protocol == "ec2")
    except parse.Malformed as error:
        raise _malformed(model.name, error) from error
    # `local` is this emulator's own instance type and in no model; services check types against facts.py.
    broken = [
        violation
        for violation in check.violations(operation.input_shape, params)
        if not (violation.kind == "enum" and violation.value == LOCAL_TYPE)
    ]
    if broken:
        raise _violation(model.name, broken)
    return params


def _malformed(service_name: str, error: parse.Malformed) -> AwsError:
    if service_name == "eks":
        return AwsError("InvalidParameterException", str(error))
    if service_name == "ec2":
        return AwsError("UnknownParameter" if error.kind == "unknown" else "InvalidParameterValue", str(error))
    return AwsError("MalformedInput" if error.kind == "type" else "ValidationError", str(error))


def _violation(service_name: str, broken: list[check.Violation]) -> AwsError:
    first = broken[0]
    if service_name == "ec2":
        name = first.path[0].upper() + first.path[1:]
        if first.kind == "required":
            return AwsError("MissingParameter", f"The request must contain the parameter {name}")
        text = f"Value ({first.value}) for parameter {first.path} is invalid. {first.constraint}"
        return AwsError("InvalidParameterValue", text)
    plural = "s" if len(broken) > 1 else ""
    text = f"{len(broken)} validation error{plural} detected: {'; '.join(item.sentence for item in broken)}"
    return AwsError("InvalidParameterException" if service_name == "eks" else "ValidationError", text)


def _unknown_action(service_name: str, action: str, *, known: bool) -> AwsError:
    if not known:
        if service_name == "eks":
            return AwsError("UnknownOperationException", "There is no such operation.", status=404)
        return AwsError("InvalidAction", f"The action {action} is not valid for this web service.")
    text = f"{service_name} {action} is not part of this emulator."
    return AwsError("UnsupportedOperation", text, status=501)
