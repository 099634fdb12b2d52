"""EC2: instances, subnets, instance types and tags, as far as node groups have to do with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from . import facts
from .clock import Clock
from .errors import AwsError
from .launch_rules import tag_problems
from .launch_templates import LaunchTemplates, page_of
from .simulation import Simulation
from .world import ACCOUNT, REGION, SECURITY_GROUP, SUBNETS, VPC, ZONES, Instance, World

Params = dict[str, Any]
_STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}


class Ec2(LaunchTemplates):
    """The operations; each takes checked parameters and returns the members of the answer."""

    def __init__(self, world: World, clock: Clock, simulation: Simulation) -> None:
        super().__init__(world, clock)
        self._simulation = simulation

    # --- instances -----------------------------------------------------------------------------------------------

    def describe_instances(self, params: Params) -> Params:
        """Instances by id and filter, one reservation each, paged."""
        ids = params.get("InstanceIds", [])
        if ids and "MaxResults" in params:
            raise AwsError(
                "InvalidParameterCombination",
                "The parameter instancesSet cannot be used with the parameter maxResults",
            )
        self._need_instances(ids)
        found = [i for i in self._world.instances.values() if not ids or i.id in ids]
        matches = [i for i in found if all(_matches(_INSTANCE_FILTERS, entry, i, i.tags) for entry in _filters(params))]
        page, token = page_of(matches, params)
        reservations = [
            {
                "ReservationId": f"r-{instance.id[2:]}",
                "OwnerId": ACCOUNT,
                "Groups": [],
                "Instances": [self._describe_instance(instance)],
            }
            for instance in page
        ]
        return {"Reservations": reservations, "NextToken": token}

    def _need_instances(self, ids: list[str]) -> None:
        for instance_id in ids:
            if not re.fullmatch(r"i-[0-9a-f]{8,17}", instance_id):
                raise AwsError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
        missing = [instance_id for instance_id in ids if instance_id not in self._world.instances]
        if missing:
            text = f"The instance ID '{missing[0]}' does not exist"
            if len(missing) > 1:
                text = f"The instance IDs '{', '.join(missing)}' do not exist"
            raise AwsError("InvalidInstanceID.NotFound", text)

    def _describe_instance(self, instance: Instance) -> Params:
        gone = instance.state == "terminated"
        answer: Params = {
            "InstanceId": instance.id,
            "ImageId": instance.image,
            "State": {"Code": _STATES[instance.state], "Name": instance.state},
            "PrivateDnsName": "" if gone else instance.node_name,
            "PublicDnsName": "",
            "StateTransitionReason": instance.reason,
            "InstanceType": instance.type,
            "LaunchTime": instance.launched_at,
            "Placement": {"AvailabilityZone": instance.zone, "GroupName": "", "Tenancy": "default"},
            "Monitoring": {"State": "disabled"},
            "Architecture": "x86_64",
            "RootDeviceType": "ebs",
            "RootDeviceName": "/dev/xvda",
            "VirtualizationType": "hvm",
            "Tags": [{"Key": key, "Value": value} for key, value in sorted(instance.tags.items())],
        }
        if not gone:
            answer |= {
                "SubnetId": instance.subnet,
                "VpcId": VPC,
                "PrivateIpAddress": instance.address,
                "SecurityGroups": [{"GroupId": SECURITY_GROUP, "GroupName": "moerl"}],
            }
        if instance.capacity_type == "SPOT":
            answer["InstanceLifecycle"] = "spot"
        elif instance.capacity_type == "CAPACITY_BLOCK":
            answer["InstanceLifecycle"] = "capacity-block"
        if instance.state in ("shutting-down", "terminated"):
            answer["StateReason"] = {"Code": "Client.UserInitiatedShutdown", "Message": instance.reason}
        return answer

    def terminate_instances(self, params: Params) -> Params:
        """Ends instances at once; their group replaces them. Asked again it answers the same."""
        self._need_instances(params["InstanceIds"])
        if params.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        answer = []
        self._world.now = self._clock.now()
        for instance_id in params["InstanceIds"]:
            instance = self._world.instances[instance_id]
            before = instance.state
            self._simulation.kill_instance(instance, reason="User initiated")
            answer.append(
                {
                    "InstanceId": instance.id,
                    "PreviousState": {"Code": _STATES[before], "Name": before},
                    "CurrentState": {"Code": _STATES[instance.state], "Name": instance.state},
                }
            )
        return {"TerminatingInstances": answer}

    # --- facts ---------------------------------------------------------------------------------------------------

    def describe_instance_types(self, params: Params) -> Params:
        """AWS's facts about instance types, and those of `local`."""
        names = params.get("InstanceTypes", [])
        unknown = [name for name in names if facts.instance_type(name) is None]
        if unknown:
            listed = ", ".join(unknown)
            raise AwsError("InvalidInstanceType", f"The following supplied instance types do not exist: [{listed}]")
        matches = []
        for name in names or facts.instance_type_names():
            info = facts.instance_type(name) or {}
            if all(_matches(_TYPE_FILTERS, entry, info, {}) for entry in _filters(params)):
                matches.append(info)
        page, token = page_of(matches, params, default=100)
        return {"InstanceTypes": page, "NextToken": token}

    def describe_instance_type_offerings(self, params: Params) -> Params:
        """Which zones (or the region) offer which types."""
        kind = params.get("LocationType", "region")
        if kind not in ("region", "availability-zone", "availability-zone-id"):
            raise AwsError("InvalidParameterValue", f"Invalid value '{kind}' for LocationType.")
        places = {"region": {REGION: list(ZONES)}, "availability-zone": {zone: [zone] for zone in ZONES}}.get(
            kind, {zone_id: [zone] for zone, zone_id in ZONES.items()}
        )
        wanted = {entry["Name"]: entry.get("Values", []) for entry in _filters(params)}
        unknown = sorted(set(wanted) - {"instance-type", "location"})
        if unknown:
            raise AwsError("InvalidParameterValue", f"The filter '{unknown[0]}' is invalid")
        offerings = [
            {"InstanceType": name, "LocationType": kind, "Location": place}
            for name in facts.instance_type_names()
            if "instance-type" not in wanted or any(fnmatchcase(name, text) for text in wanted["instance-type"])
            for place, zones in places.items()
            if ("location" not in wanted or place in wanted["location"])
            and any(facts.offered(name, zone) for zone in zones)
        ]
        page, token = page_of(offerings, params)
        return {"InstanceTypeOfferings": page, "NextToken": token}

    def describe_subnets(self, params: Params) -> Params:
        """The three pre-made subnets."""
        for subnet in params.get("SubnetIds", []):
            if subnet not in SUBNETS:
                raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
        used = [instance.subnet for instance in self._world.instances.values() if instance.state != "terminated"]
        answer = []
        for index, (subnet, zone) in enumerate(SUBNETS.items()):
            if params.get("SubnetIds") and subnet not in params["SubnetIds"]:
                continue
            item = {
                "SubnetId": subnet,
                "AvailabilityZone": zone,
                "AvailabilityZoneId": ZONES[zone],
                "AvailableIpAddressCount": 16379 - used.count(subnet),
                "CidrBlock": f"10.1.{64 * index}.0/18",
                "VpcId": VPC,
                "State": "available",
                "DefaultForAz": False,
                "MapPublicIpOnLaunch": False,
                "OwnerId": ACCOUNT,
                "SubnetArn": f"arn:aws:ec2:{REGION}:{ACCOUNT}:subnet/{subnet}",
                "Tags": [],
            }
            if all(_matches(_SUBNET_FILTERS, entry, item, {}) for entry in _filters(params)):
                answer.append(item)
        return {"Subnets": answer}

    def describe_security_groups(self, params: Params) -> Params:
        """The one pre-made security group."""
        for group in params.get("GroupIds", []):
            if group != SECURITY_GROUP:
                raise AwsError("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
        item = {
            "GroupId": SECURITY_GROUP,
            "GroupName": "moerl",
            "Description": "moerl",
            "VpcId": VPC,
            "OwnerId": ACCOUNT,
        }
        return {"SecurityGroups": [item]}

    def describe_availability_zones(self, params: Params) -> Params:
        """The region's zones."""
        zones = [
            {"ZoneName": zone, "ZoneId": zone_id, "RegionName": REGION, "State": "available",
             "ZoneType": "availability-zone", "OptInStatus": "opt-in-not-required"}
            for zone, zone_id in ZONES.items()
        ]  # fmt: skip
        return {"AvailabilityZones": zones}

    # --- tags ----------------------------------------------------------------------------------------------------

    def _tags_of(self, resource: str) -> dict[str, str]:
        if resource in self._world.instances:
            return self._world.instances[resource].tags
        if resource in self._world.templates:
            return self._world.templates[resource].tags
        kinds = {
            "i-": ("InvalidInstanceID.NotFound", "instance"),
            "lt-": ("InvalidLaunchTemplateId.NotFound", "launch template"),
        }
        for prefix, (code, noun) in kinds.items():
            if resource.startswith(prefix):
                raise AwsError(code, f"The {noun} ID '{resource}' does not exist")
        raise AwsError("InvalidID", f"The ID '{resource}' is not valid")

    def create_tags(self, params: Params) -> Params:
        """Tags on instances and launch templates."""
        problem = next(tag_problems(params["Tags"]), None)
        if problem is not None:
            raise AwsError(problem.code, problem.message)
        for tags in [self._tags_of(resource) for resource in params["Resources"]]:
            tags.update({tag["Key"]: tag.get("Value", "") for tag in params["Tags"]})
        return {}

    def delete_tags(self, params: Params) -> Params:
        """Removes tags; with a value only where it is that value; without any tag all of them."""
        for tags in [self._tags_of(resource) for resource in params["Resources"]]:
            if not params.get("Tags"):
                tags.clear()
            for tag in params.get("Tags", []):
                if "Value" not in tag or tags.get(tag["Key"]) == tag["Value"]:
                    tags.pop(tag["Key"], None)
        return {}

    def describe_tags(self, params: Params) -> Params:
        """Tags of instances and launch templates by filters key, value, resource-id, resource-type, tag:<key>."""
        found = [
            {"Key": key, "Value": value, "ResourceId": resource, "ResourceType": kind}
            for kind, owners in (("instance", self._world.instances), ("launch-template", self._world.templates))
            for resource, owner in owners.items()
            for key, value in sorted(owner.tags.items())
        ]
        for entry in _filters(params):
            found = [tag for tag in found if _matches(_TAG_FILTERS, entry, tag, {tag["Key"]: tag["Value"]})]
        page, token = page_of(found, params)
        return {"Tags": page, "NextToken": token}


_INSTANCE_FILTERS: dict[str, Callable[[Any], str]] = {
    "instance-id": lambda i: i.id,
    "instance-state-name": lambda i: i.state,
    "instance-state-code": lambda i: str(_STATES[i.state]),
    "instance-type": lambda i: i.type,
    "availability-zone": lambda i: i.zone,
    "subnet-id": lambda i: i.subnet,
    "private-dns-name": lambda i: i.node_name,
    "private-ip-address": lambda i: i.address,
    "vpc-id": lambda i: VPC,
    "image-id": lambda i: i.image,
    "instance-lifecycle": lambda i: {"SPOT": "spot"}.get(i.capacity_type, "scheduled"),
}
_TYPE_FILTERS: dict[str, Callable[[Any], str]] = {
    "instance-type": lambda t: t["InstanceType"],
    "supported-usage-class": lambda t: t.get("SupportedUsageClasses", []),
    "network-info.efa-supported": lambda t: str(t["NetworkInfo"].get("EfaSupported", False)).lower(),
    "current-generation": lambda t: str(t.get("CurrentGeneration", True)).lower(),
    "processor-info.supported-architecture": lambda t: t["ProcessorInfo"]["SupportedArchitectures"],
}
_SUBNET_FILTERS: dict[str, Callable[[Any], str]] = {
    "subnet-id": lambda s: s["SubnetId"],
    "vpc-id": lambda s: s["VpcId"],
    "availability-zone": lambda s: s["AvailabilityZone"],
    "state": lambda s: s["State"],
}
_TAG_FILTERS: dict[str, Callable[[Any], str]] = {
    "key": lambda t: t["Key"],
    "value": lambda t: t["Value"],
    "resource-id": lambda t: t["ResourceId"],
    "resource-type": lambda t: t["ResourceType"],
}


def _filters(params: Params) -> list[Params]:
    filters: list[Params] = params.get("Filters", [])
    return filters


def _matches(known: dict[str, Callable[[Any], Any]], entry: Params, item: Any, tags: dict[str, str]) -> bool:
    name, values = entry.get("Name", ""), entry.get("Values", [])
    if name == "tag-key":
        have: Any = list(tags)
    elif name.startswith("tag:"):
        have = [tags[name[4:]]] if name[4:] in tags else []
    elif name in known:
        have = known[name](item)
    else:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    options = have if isinstance(have, list) else [have]
    return any(fnmatchcase(option, value) for option in options for value in values)
