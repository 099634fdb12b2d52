"""What EKS refuses in CreateNodegroup and UpdateNodegroupConfig, in its own words where they are known."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from . import facts
from .errors import AwsError
from .launch_rules import launch_problems
from .world import NODE_ROLE, SUBNETS, LaunchTemplate, World

NODEGROUPS_PER_CLUSTER = 30
NODES_PER_GROUP = 450
TAINTS_PER_GROUP = 50
_RESERVED = ("kubernetes.io", "k8s.io", "eks.amazonaws.com")
_LABEL_NAME = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)"
_LABEL_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL_NAME}")
_LABEL_VALUE = re.compile(rf"{_LABEL_NAME}?")
_GROUP_NAME = re.compile(r"[0-9A-Za-z][A-Za-z0-9_-]{0,62}")


def invalid(message: str) -> AwsError:
    """An InvalidParameterException."""
    return AwsError("InvalidParameterException", message)


def check_create(params: dict[str, Any], template: dict[str, Any] | None) -> None:
    """Raises AwsError for the first rule of CreateNodegroup that `params` break; `template` is the version's data."""
    if not _GROUP_NAME.fullmatch(params["nodegroupName"]):
        raise invalid(
            "The nodegroup name must begin with a letter or digit, contain only letters, digits, hyphens and "
            f"underscores and have at most 63 characters: {params['nodegroupName']}"
        )
    _check_subnets(params["subnets"])
    if params["nodeRole"] != NODE_ROLE:
        raise invalid(f"The role with name {params['nodeRole'].rsplit('/', 1)[-1]} cannot be found.")
    check_scaling(params["scalingConfig"])
    check_labels(params.get("labels", {}))
    check_taints(params.get("taints", []))
    check_update_config(params.get("updateConfig"))
    _check_template_against_request(params, template)
    types = [template["InstanceType"]] if template and "InstanceType" in template else params.get("instanceTypes", [])
    _check_types(params, template, types)
    if template is not None:
        _check_template(template, types)
    if params["capacityType"] == "CAPACITY_BLOCK":
        _check_capacity_block(params, template)
    elif (template or {}).get("InstanceMarketOptions"):
        market = (template or {})["InstanceMarketOptions"].get("MarketType")
        raise invalid(
            f"Launch template market type {market} does not go with capacityType {params['capacityType']}: EKS sets "
            "the market of ON_DEMAND and SPOT groups itself."
        )


def _check_subnets(subnets: list[str]) -> None:
    if not subnets:
        raise invalid("Subnets must not be empty.")
    for subnet in subnets:
        if subnet not in SUBNETS:
            raise invalid(f"The subnet ID '{subnet}' does not exist")
    if len(set(subnets)) != len(subnets):
        raise invalid("Subnets must be unique.")


def check_scaling(scaling: dict[str, int], *, nodes_quota: int = NODES_PER_GROUP) -> None:
    """min <= desired <= max, and the quota of nodes."""
    minimum, maximum, desired = scaling["minSize"], scaling["maxSize"], scaling["desiredSize"]
    if minimum > maximum:
        raise invalid(f"Minimum capacity {minimum} can't be greater than max size {maximum}")
    if minimum > desired:
        raise invalid(f"Minimum capacity {minimum} can't be greater than desired size {desired}")
    if desired > maximum:
        raise invalid(f"desired capacity {desired} can't be greater than max size {maximum}")
    if maximum > nodes_quota:
        raise AwsError("ResourceLimitExceededException", f"The maximum number of nodes per group is {nodes_quota}.")


def check_labels(labels: dict[str, str]) -> None:
    """Kubernetes' syntax, and the prefixes that EKS keeps for itself."""
    for key, value in labels.items():
        prefix = key.split("/")[0] if "/" in key else ""
        if any(prefix == name or prefix.endswith(f".{name}") for name in _RESERVED):
            raise invalid(
                f"Label cannot contain reserved prefixes [kubernetes.io/, k8s.io/, eks.amazonaws.com/]: {key}"
            )
        if not _LABEL_KEY.fullmatch(key) or len(prefix) > 253:
            raise invalid(f"Label key {key} is not a valid Kubernetes label key.")
        if not _LABEL_VALUE.fullmatch(value):
            raise invalid(f"Label value {value} of {key} is not a valid Kubernetes label value.")


def check_taints(taints: list[dict[str, str]]) -> None:
    """At most 50, each with key and effect, none twice."""
    if len(taints) > TAINTS_PER_GROUP:
        raise invalid(f"At most {TAINTS_PER_GROUP} taints are allowed, given {len(taints)}.")
    seen = set()
    for taint in taints:
        if not taint.get("key") or not taint.get("effect"):
            raise invalid("A taint needs a key and an effect.")
        if not _LABEL_KEY.fullmatch(taint["key"]) or not _LABEL_VALUE.fullmatch(taint.get("value", "")):
            raise invalid(f"Taint {taint['key']}={taint.get('value', '')} is not valid in Kubernetes.")
        place = (taint["key"], taint["effect"])
        if place in seen:
            raise invalid(f"Duplicate taint {taint['key']}:{taint['effect']}.")
        seen.add(place)


def check_update_config(update: dict[str, Any] | None) -> None:
    """One of a number and a percentage."""
    if update and "maxUnavailable" in update and "maxUnavailablePercentage" in update:
        raise invalid("Only one of maxUnavailable and maxUnavailablePercentage may be given.")
    if update and update.get("maxUnavailable", 1) > 100:
        raise invalid("maxUnavailable must be at most 100.")


def _check_template_against_request(params: dict[str, Any], template: dict[str, Any] | None) -> None:
    if template is None:
        if params.get("amiType") == "CUSTOM":
            raise invalid("Launch template details can't be null for Custom ami type node group")
        return
    if "diskSize" in params:
        raise invalid("Disk size must be specified within the launch template.")
    if "remoteAccess" in params:
        raise invalid("Remote access configuration cannot be specified with a launch template.")
    if "InstanceType" in template and params.get("instanceTypes"):
        raise invalid("Instance types cannot be given both in the launch template and in the request.")
    if "ImageId" in template:
        if params.get("amiType", "CUSTOM") != "CUSTOM":
            raise invalid(
                "You cannot specify an AMI Type other than CUSTOM, when specifying an image id in your launch template."
            )
        for name in ("version", "releaseVersion"):
            if name in params:
                raise invalid(
                    f"You cannot specify the field {name} when specifying an image id in your launch template."
                )
    elif params.get("amiType") == "CUSTOM":
        raise invalid("You must specify an image id in your launch template for a node group of AMI type CUSTOM.")


def _check_types(params: dict[str, Any], template: dict[str, Any] | None, types: list[str]) -> None:
    if len(types) > 20:
        raise invalid("At most 20 instance types are allowed.")
    if template is not None and not types:
        raise invalid("Instance types must be given either in the launch template or in the request.")
    unknown = [name for name in types if facts.instance_type(name) is None]
    if unknown:
        raise invalid(f"The following supplied instance types do not exist: [{', '.join(unknown)}]")
    ami = params.get("amiType", "")
    wanted = "arm64" if "ARM_64" in ami else "x86_64"
    for name in types:
        info = facts.instance_type(name) or {}
        if ami not in ("", "CUSTOM") and wanted not in info["ProcessorInfo"]["SupportedArchitectures"]:
            raise invalid(f"[{name}] is not a valid instance type for requested amiType {ami}")
    architectures = {
        tuple((facts.instance_type(name) or {})["ProcessorInfo"]["SupportedArchitectures"]) for name in types
    }
    if len(architectures) > 1:
        raise invalid(f"Instance types {types} have different processor architectures.")


def _check_template(data: dict[str, Any], types: list[str]) -> None:
    if data.get("IamInstanceProfile"):
        raise AwsError(
            "InvalidRequestException",
            "Launch template should not specify an instance profile. The noderole in your request will be used to "
            "construct an instance profile.",
        )
    if any(entry.get("SubnetId") for entry in data.get("NetworkInterfaces", [])):
        raise AwsError(
            "InvalidRequestException", "Launch template should not specify subnets in its network interfaces."
        )
    for name in ("InstanceInitiatedShutdownBehavior", "HibernationOptions"):
        if data.get(name):
            raise AwsError("InvalidRequestException", f"Launch template should not specify {name}.")
    user_data = data.get("UserData")
    if user_data and "ImageId" not in data:
        text = base64.b64decode(user_data).decode(errors="replace").lstrip().lower()
        if not text.startswith(("mime-version:", "content-type: multipart/")):
            message = "Ec2LaunchTemplateInvalidConfiguration: User data was not in the MIME multipart format."
            raise AwsError("InvalidRequestException", message)
    problem = next(launch_problems(data, types), None)
    if problem is not None:
        raise AwsError(
            "InvalidRequestException",
            f"Ec2LaunchTemplateInvalidConfiguration: {problem.message} (Service: Ec2, Status Code: 400, "
            f"Error Code: {problem.code})",
        )


def _check_capacity_block(params: dict[str, Any], template: dict[str, Any] | None) -> None:
    if template is None:
        raise invalid("Launch template details can't be null for a CAPACITY_BLOCK node group.")
    if template.get("InstanceMarketOptions", {}).get("MarketType") != "capacity-block":
        raise invalid("The launch template of a CAPACITY_BLOCK node group needs market type capacity-block.")
    target = template.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    if not target.get("CapacityReservationId"):
        raise invalid("The launch template of a CAPACITY_BLOCK node group needs the Capacity Block's reservation id.")
    if "InstanceType" not in template:
        raise invalid("The launch template of a CAPACITY_BLOCK node group needs the Capacity Block's instance type.")
    if len(params["subnets"]) != 1:
        raise invalid("A CAPACITY_BLOCK node group takes one subnet, that of the Capacity Block's zone.")


def template_version(world: World, reference: dict[str, str]) -> tuple[LaunchTemplate, int, dict[str, Any]]:
    """The launch template, version number and data that a request names. Raises AwsError where it is not there."""
    if ("id" in reference) == ("name" in reference):
        raise invalid("You must specify either the launch template ID or the launch template name, but not both.")
    key = reference.get("id") or reference["name"]
    template = next((t for t in world.templates.values() if key in (t.id, t.name)), None)
    if template is None or template.managed:
        raise AwsError(
            "InvalidRequestException",
            f"Ec2LaunchTemplateNotFound: The specified launch template, {key}, does not exist.",
        )
    wanted = reference.get("version", "$Default")
    latest = max(version.number for version in template.versions)
    number = {"$Default": template.default, "$Latest": latest}.get(wanted)
    if number is None:
        number = int(wanted) if wanted.isdecimal() else -1
    for version in template.versions:
        if version.number == number:
            return template, number, version.data
    raise AwsError(
        "InvalidRequestException",
        f"Ec2LaunchTemplateVersionMismatch: Could not find the specified version {wanted} for the launch template "
        f"with ID {template.id}.",
    )


def violations_of_request(sentences: Iterator[str]) -> AwsError | None:
    """The error for broken bounds of the service model."""
    texts = list(sentences)
    if not texts:
        return None
    plural = "s" if len(texts) > 1 else ""
    return invalid(f"{len(texts)} validation error{plural} detected: {'; '.join(texts)}")
