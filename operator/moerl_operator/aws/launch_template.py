"""The launch template of a node group: pure translation of a NodeGroupSpec into EC2's words.

Rules that EKS checks only when the group is made, or never: no subnet, no instance profile and no shutdown
behaviour in it; security groups on the interfaces as soon as there are any, else on the instance; one
template serves all types of the group, so they share one EFA layout.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from moerl_operator.aws.user_data import ClusterAddress, render
from moerl_operator.core.world import NodeGroupSpec

ROOT_DEVICE = "/dev/xvda"  # of the Amazon Linux 2023 EKS images
TAGGED_RESOURCES = ("instance", "volume", "network-interface")
METADATA_HOPS = 2  # pods that use IMDSv2 are one hop further away than the host


def template_data(spec: NodeGroupSpec, cluster: ClusterAddress | None = None) -> dict[str, Any]:
    """LaunchTemplateData of the group. `cluster` is needed for a custom image only.

    Raises ValueError for what no launch could satisfy (user data too long, a custom image without `cluster`).
    """
    data: dict[str, Any] = {
        "BlockDeviceMappings": [{"DeviceName": ROOT_DEVICE, "Ebs": _root_volume(spec)}],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": METADATA_HOPS,
        },
        "TagSpecifications": [
            {"ResourceType": resource, "Tags": tag_list({"Name": spec.name, **spec.tags})}
            for resource in TAGGED_RESOURCES
        ],
    }
    if spec.efa_interfaces:
        data["NetworkInterfaces"] = network_interfaces(spec)
    else:
        data["SecurityGroupIds"] = list(spec.security_groups)
    if spec.placement_group:
        data["Placement"] = {"GroupName": spec.placement_group}
    if spec.ami_id:
        data["ImageId"] = spec.ami_id
    if text := _user_data(spec, cluster):
        data["UserData"] = base64.b64encode(text.encode()).decode()
    return data | _purchase(spec)


def network_interfaces(spec: NodeGroupSpec) -> list[dict[str, Any]]:
    """AWS's recommended layout: an ordinary interface first on card 0, one efa-only interface per EFA device.

    EFA-only interfaces take no IP address. Card 0 holds one beside the ordinary interface where it can
    (p6-b300's cannot: 17 cards, 16 EFA devices).
    """
    common = {"Groups": list(spec.security_groups), "DeleteOnTermination": True}
    interfaces = [{"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface", **common}]
    places = ([(0, 1)] if spec.efa_on_card_zero else []) + [(card, 0) for card in range(1, spec.network_cards)]
    for card, device in places[: spec.efa_interfaces]:
        interfaces.append(
            {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": "efa-only", **common},
        )
    return interfaces


def fingerprint(name: str, data: Mapping[str, Any]) -> str:
    """A client token: the same request has the same, another request another."""
    return sha256(f"{name}\n{json.dumps(data, sort_keys=True)}".encode()).hexdigest()[:40]


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags in EC2's and Auto Scaling's form, sorted."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def _root_volume(spec: NodeGroupSpec) -> dict[str, Any]:
    volume: dict[str, Any] = {
        "VolumeSize": spec.root_volume_gib,
        "VolumeType": spec.root_volume_type,
        "Encrypted": True,
        "DeleteOnTermination": True,
    }
    if spec.root_volume_iops:
        volume["Iops"] = spec.root_volume_iops
    if spec.root_volume_throughput:
        volume["Throughput"] = spec.root_volume_throughput
    return volume


def _user_data(spec: NodeGroupSpec, cluster: ClusterAddress | None) -> str | None:
    join = None
    if spec.ami_id:
        if cluster is None:
            raise ValueError(f"{spec.name}: a custom image needs the cluster's address in its user data")
        join = (cluster, spec.labels, spec.taints)
    return render(hugepages_2mi=spec.hugepages_2mi, extra=spec.user_data, join=join)


def _purchase(spec: NodeGroupSpec) -> dict[str, Any]:
    """How the instances are bought. Without a word On-Demand instances eat anybody's open reservations."""
    if spec.capacity_type == "Spot":
        return {}  # never served from reservations
    if spec.capacity_type == "OnDemand":
        return {"CapacityReservationSpecification": {"CapacityReservationPreference": "none"}}
    if not spec.capacity_reservation:
        raise ValueError(f"{spec.name}: {spec.capacity_type} needs a reservation")
    target = {"CapacityReservationTarget": {"CapacityReservationId": spec.capacity_reservation}}
    bought: dict[str, Any] = {"CapacityReservationSpecification": target}
    if spec.capacity_type == "CapacityBlock":
        bought["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        bought["InstanceType"] = spec.instance_types[0]
    return bought
