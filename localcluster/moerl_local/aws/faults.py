"""Faults that a test or a person injects, and the questions that the services ask about them."""

from __future__ import annotations

import uuid
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import AwsError
from .world import ACCOUNT, Instance, NodeGroup, World

FaultKind = Literal[
    "insufficient-capacity",
    "launch-failure",
    "join-failure",
    "throttle",
    "access-denied",
    "credentials",
    "quota",
    "server-error",
    "lost-answer",
    "slow",
    "delete-failed",
    "update-failed",
    "degraded-accepts-updates",
    "busy-refuses-delete",
]


class Fault(BaseModel):
    """One injected fault. Fields left out match everything; `times` counts down, None lasts until it is removed.

    What the fields narrow: `service` and `action` (API calls), `accessKey` (credentials), `instanceType`, `zone`,
    `capacityType`, `nodegroup` (launches and groups). `available` is how many instances such a pool holds at most
    (insufficient-capacity), `name` and `value` a quota (`nodegroups`, `nodes`, `instances`), `seconds` wall time of a
    slow answer, `code`, `message`, `status` replace the default words.
    """

    model_config = ConfigDict(extra="forbid")

    kind: FaultKind
    id: str = Field(default_factory=lambda: uuid.uuid4().hex[:8])
    times: int | None = Field(default=None, ge=1)
    service: str | None = None
    action: str | None = None
    accessKey: str | None = None
    instanceType: str | None = None
    zone: str | None = None
    capacityType: str | None = None
    nodegroup: str | None = None
    available: int = Field(default=0, ge=0)
    name: Literal["nodegroups", "nodes", "instances"] | None = None
    value: int = Field(default=0, ge=0)
    seconds: float = Field(default=1.0, ge=0, le=600)
    code: str | None = None
    message: str | None = None
    status: int | None = None

    def document(self) -> dict[str, Any]:
        """What was asked for, with the id: the fields that were set."""
        return self.model_dump(exclude_none=True, include=self.model_fields_set | {"id", "kind"})

    def fits(self, **facts: str) -> bool:
        """Whether every field that is set equals the fact of the same name."""
        return all(getattr(self, name) in (None, fact) for name, fact in facts.items())


def parse_fault(document: Any) -> Fault:
    """A fault from JSON. Raises ValueError with one line that names the field and what is allowed."""
    try:
        return Fault.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "fault"
        hint = f" (kinds: {', '.join(get_args(FaultKind))})" if where == "kind" else ""
        raise ValueError(f"{where}: {first['msg']}{hint}") from error


class Faults:
    """The faults in force; they live in the world, so that a restart keeps them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults = [Fault.model_validate(entry) for entry in world.faults]

    def _save(self) -> None:
        self._world.faults = [fault.document() for fault in self._faults]

    def all(self) -> list[Fault]:
        """Those in force."""
        return list(self._faults)

    def add(self, fault: Fault) -> None:
        """Put one in force."""
        self._faults.append(fault)
        self._save()

    def remove(self, fault_id: str | None = None) -> int:
        """Lift one, or all; how many went."""
        before = len(self._faults)
        self._faults = [fault for fault in self._faults if fault_id is not None and fault.id != fault_id]
        self._save()
        return before - len(self._faults)

    def take(self, kind: str, **facts: str) -> Fault | None:
        """The first fault of a kind that fits, counted down by one; None where there is none."""
        for fault in self._faults:
            if fault.kind == kind and fault.fits(**facts):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                self._save()
                return fault
        return None

    def has(self, kind: str, **facts: str) -> bool:
        """Whether a fault of a kind is in force, without counting it down."""
        return any(fault.kind == kind and fault.fits(**facts) for fault in self._faults)

    def denies(self, service: str, action: str) -> bool:
        """Whether exactly this action is denied: EKS tries some on the caller's behalf."""
        return any((f.kind, f.service, f.action) == ("access-denied", service, action) for f in self._faults)

    def quota(self, name: str, default: int) -> int:
        """A quota's value: the injected one, else AWS's default."""
        return next((f.value for f in self._faults if f.kind == "quota" and f.name == name), default)

    def shortage(self, group: NodeGroup, *, instance_type: str, zone: str) -> str | None:
        """Why one more instance cannot be launched now, in the words of a scaling activity; None if it can."""
        capacity_type = group.capacity_type
        facts = {"instanceType": instance_type, "zone": zone, "capacityType": capacity_type, "nodegroup": group.name}
        market = "Spot" if capacity_type == "SPOT" else "On-Demand"
        live = [i for i in self._world.instances.values() if i.state in ("pending", "running")]
        if len(live) >= self.quota("instances", 1_000_000):
            return f"Could not launch {market} Instances. {_quota_text(capacity_type)} Launching EC2 instance failed."
        failure = self.take("launch-failure", **facts)
        if failure is not None:
            code = failure.code or "InvalidParameterCombination"
            text = failure.message or "The parameter is not valid for this launch."
            return f"Could not launch {market} Instances. {code} - {text} Launching EC2 instance failed."
        for fault in self._faults:
            if fault.kind == "insufficient-capacity" and fault.fits(**facts):
                same = [i for i in live if _in_pool(fault, i)]
                if len(same) >= fault.available:
                    text = _capacity_text(capacity_type, instance_type, zone)
                    return f"Could not launch {market} Instances. {text} Launching EC2 instance failed."
        return None

    def call_error(self, service: str, action: str, access_key: str) -> AwsError | None:
        """The error with which an injected fault answers an API call, in that service's own words."""
        facts = {"service": service, "action": action}
        if self.take("credentials", **facts, accessKey=access_key):
            return _credentials_error(service)
        denied = self.take("access-denied", **facts)
        if denied:
            return _access_error(service, action, denied.message)
        throttled = self.take("throttle", **facts)
        if throttled:
            return _throttle_error(service, throttled)
        broken = self.take("server-error", **facts)
        if broken:
            defaults = {"eks": "ServerException", "ec2": "InternalError", "autoscaling": "InternalFailure"}
            code = broken.code or defaults.get(service, "InternalFailure")
            return AwsError(code, broken.message or "An internal error has occurred", status=broken.status or 500)
        return None


def _in_pool(fault: Fault, instance: Instance) -> bool:
    return fault.fits(
        instanceType=instance.type,
        zone=instance.zone,
        capacityType=instance.capacity_type,
        nodegroup=instance.nodegroup,
    )


def _quota_text(capacity_type: str) -> str:
    if capacity_type == "SPOT":
        return "MaxSpotInstanceCountExceeded - Max spot instance count exceeded."
    return (
        "VcpuLimitExceeded - You have requested more vCPU capacity than your current vCPU limit allows for the "
        "instance bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
    )


def _capacity_text(capacity_type: str, instance_type: str, zone: str) -> str:
    if capacity_type == "SPOT":
        return (
            "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. "
            "Please adjust your request and try again."
        )
    return (
        f"InsufficientInstanceCapacity - We currently do not have sufficient {instance_type} capacity in the "
        f"Availability Zone you requested ({zone}). Our system will be working on provisioning additional capacity. "
        f"You can currently get {instance_type} capacity by not specifying an Availability Zone in your request or "
        "choosing another Availability Zone."
    )


def _credentials_error(service: str) -> AwsError:
    if service == "ec2":
        return AwsError("AuthFailure", "AWS was not able to validate the provided access credentials", status=401)
    code = "UnrecognizedClientException" if service == "eks" else "InvalidClientTokenId"
    return AwsError(code, "The security token included in the request is invalid.", status=403)


def _access_error(service: str, action: str, message: str | None) -> AwsError:
    who = f"arn:aws:iam::{ACCOUNT}:user/test"
    text = f"User: {who} is not authorized to perform: {service}:{action} because no identity-based policy allows it"
    if service == "ec2":
        text = message or f"You are not authorized to perform this operation. {text}"
        return AwsError("UnauthorizedOperation", text, status=403)
    return AwsError("AccessDeniedException" if service == "eks" else "AccessDenied", message or text, status=403)


def _throttle_error(service: str, fault: Fault) -> AwsError:
    code, text, status = {
        "eks": ("ThrottlingException", "Rate exceeded", 429),
        "ec2": ("RequestLimitExceeded", "Request limit exceeded.", 503),
    }.get(service, ("Throttling", "Rate exceeded", 400))
    return AwsError(fault.code or code, fault.message or text, status=fault.status or status)
