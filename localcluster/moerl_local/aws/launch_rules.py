"""What EC2 refuses when an instance is launched from a template, in the order in which a person would mend it.

EC2 itself only warns of these at CreateLaunchTemplate; CreateNodegroup, which tries the launch dry, refuses them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import facts
from .world import SECURITY_GROUP

INTERFACE_TYPES = ("interface", "efa", "efa-only")
TAGGABLE = ("instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu", "elastic-inference")
MAX_USER_DATA = 16 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a launch is refused: EC2's code and message."""

    code: str
    message: str


def syntax_problems(data: dict[str, Any]) -> Iterator[Problem]:
    """What CreateLaunchTemplate itself refuses: values that no launch could ever have."""
    for interface in data.get("NetworkInterfaces", []):
        kind = interface.get("InterfaceType")
        if kind is not None and kind not in INTERFACE_TYPES:
            allowed = ", ".join(INTERFACE_TYPES)
            yield Problem(
                "InvalidParameterValue", f"Value ({kind}) for parameter interfaceType is invalid. Use one of {allowed}."
            )
    seen = set()
    for specification in data.get("TagSpecifications", []):
        kind = specification.get("ResourceType")
        if kind not in TAGGABLE:
            yield Problem(
                "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type for this operation."
            )
        if kind in seen:
            yield Problem("InvalidParameterValue", f"Duplicate resource type '{kind}' in the tag specifications.")
        seen.add(kind)
        yield from tag_problems(specification.get("Tags", []))
    user_data = data.get("UserData")
    if user_data is not None:
        try:
            size = len(base64.b64decode(user_data, validate=True))
        except (ValueError, binascii.Error):
            yield Problem("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
            return
        if size > MAX_USER_DATA:
            yield Problem("InvalidUserData.Malformed", f"User data is limited to {MAX_USER_DATA} bytes, given {size}.")


def tag_problems(tags: Sequence[dict[str, str]]) -> Iterator[Problem]:
    """EC2's rules for tags: at most 50, no key twice, lengths, no `aws:`."""
    keys = [tag.get("Key", "") for tag in tags]
    if len(keys) > 50:
        yield Problem("TagLimitExceeded", "Tag limit exceeded: at most 50 tags per resource.")
    for key in keys:
        if not 1 <= len(key) <= 127:
            yield Problem("InvalidParameterValue", f"Tag key '{key[:40]}' must have 1 to 127 characters.")
        if key.lower().startswith("aws:"):
            yield Problem("InvalidParameterValue", f"Tag keys starting with 'aws:' are reserved: {key}.")
    if len(set(keys)) != len(keys):
        yield Problem("InvalidParameterValue", "Duplicate tag key in the tag specification.")
    for tag in tags:
        if len(tag.get("Value", "")) > 255:
            yield Problem("InvalidParameterValue", f"The value of tag '{tag['Key']}' exceeds 255 characters.")


def launch_problems(data: dict[str, Any], instance_types: Sequence[str]) -> Iterator[Problem]:
    """Why RunInstances would refuse this template for these types (none given: what holds for every type)."""
    yield from syntax_problems(data)
    for name in instance_types:
        if facts.instance_type(name) is None:
            yield Problem("InvalidParameterValue", f"Invalid value '{name}' for InstanceType.")
            return
    image = data.get("ImageId")
    if image and not re.fullmatch(r"ami-[0-9a-f]{8,17}|resolve:ssm:.+", image):
        yield Problem("InvalidAMIID.Malformed", f'Invalid id: "{image}" (expecting "ami-...")')
    yield from _group_problems(data)
    yield from _interface_problems(data.get("NetworkInterfaces", []))
    for name in instance_types:
        yield from _type_problems(data.get("NetworkInterfaces", []), name)
    yield from _market_problems(data)
    placement_group = data.get("Placement", {}).get("GroupName")
    if placement_group:
        yield Problem("InvalidPlacementGroup.Unknown", f"The Placement Group '{placement_group}' is unknown.")


def _group_problems(data: dict[str, Any]) -> Iterator[Problem]:
    interfaces = data.get("NetworkInterfaces", [])
    if interfaces and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
        yield Problem(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    if data.get("SecurityGroupIds") and data.get("SecurityGroups"):
        yield Problem("InvalidParameterCombination", "Specify security groups by id or by name, not by both.")
    groups = list(data.get("SecurityGroupIds", []))
    for interface in interfaces:
        groups += interface.get("Groups", [])
    for group in dict.fromkeys(groups):
        if group != SECURITY_GROUP:
            yield Problem("InvalidGroup.NotFound", f"The security group '{group}' does not exist")


def _interface_problems(interfaces: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    if not interfaces:
        return
    places = [(entry.get("NetworkCardIndex", 0), entry.get("DeviceIndex")) for entry in interfaces]
    if any(device is None for _, device in places):
        yield Problem("MissingParameter", "Each network interface requires a device index.")
        return
    for place in dict.fromkeys(places):
        if places.count(place) > 1:
            text = f"Network card {place[0]} has two interfaces with device index {place[1]}."
            yield Problem("InvalidParameterCombination", text)
    if (0, 0) not in places:
        text = "There is no primary network interface: network card 0, device index 0 is missing."
        yield Problem("InvalidParameterCombination", text)
    if len(interfaces) > 1 and any(entry.get("AssociatePublicIpAddress") for entry in interfaces):
        yield Problem(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with "
            "multiple network interfaces.",
        )
    for entry, (card, device) in zip(interfaces, places, strict=True):
        if entry.get("InterfaceType") != "efa-only":
            continue
        if (card, device) == (0, 0):
            text = "An EFA-only network interface cannot be the primary network interface."
            yield Problem("InvalidParameterCombination", text)
        addressed = (
            "AssociatePublicIpAddress", "PrivateIpAddress", "PrivateIpAddresses", "SecondaryPrivateIpAddressCount",
            "Ipv4Prefixes", "Ipv4PrefixCount", "Ipv6Prefixes", "Ipv6PrefixCount", "Ipv6Addresses", "Ipv6AddressCount",
        )  # fmt: skip
        used = [name for name in addressed if entry.get(name)]
        if used:
            text = f"An EFA-only network interface (card {card}) has no IP addresses: {', '.join(used)} not allowed."
            yield Problem("InvalidParameterCombination", text)


def _type_problems(interfaces: Sequence[dict[str, Any]], name: str) -> Iterator[Problem]:
    info = facts.instance_type(name) or {}
    network = info.get("NetworkInfo", {})
    cards = {card["NetworkCardIndex"]: card for card in network.get("NetworkCards", [])}
    efa = 0
    for entry in interfaces:
        index, device = entry.get("NetworkCardIndex", 0), entry.get("DeviceIndex", 0)
        kind = entry.get("InterfaceType", "interface")
        card = cards.get(index)
        if card is None:
            text = f"Network card index {index} is out of range for {name}, which has {len(cards)} network cards."
            yield Problem("InvalidParameterValue", text)
            continue
        if device >= card["MaximumNetworkInterfaces"]:
            text = (
                f"Device index {device} on network card {index} exceeds the {card['MaximumNetworkInterfaces']} "
                f"interfaces of that card of {name}."
            )
            yield Problem("AttachmentLimitExceeded", text)
        if kind == "interface":
            continue
        efa += 1
        allowed = card.get("InterfaceTypes")
        if not network.get("EfaInfo"):
            yield Problem("Unsupported", f"EFA interfaces are not supported on {name}.")
            return
        if allowed and kind not in allowed:
            text = f"Network card {index} of {name} does not support interface type {kind} (it has {allowed})."
            yield Problem("InvalidParameterCombination", text)
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    if efa > most:
        yield Problem("AttachmentLimitExceeded", f"{name} supports {most} EFA interfaces, {efa} were given.")


def _market_problems(data: dict[str, Any]) -> Iterator[Problem]:
    market = data.get("InstanceMarketOptions", {}).get("MarketType")
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    reservation = target.get("CapacityReservationId")
    if market == "capacity-block" and not reservation:
        text = "Market type capacity-block needs the Capacity Block's id as CapacityReservationTarget."
        yield Problem("InvalidParameterCombination", text)
    if reservation and not re.fullmatch(r"cr-[0-9a-f]{8,17}", reservation):
        yield Problem("InvalidCapacityReservationId.Malformed", f'Invalid id: "{reservation}" (expecting "cr-...")')
