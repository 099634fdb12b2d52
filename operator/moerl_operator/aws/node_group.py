"""EKS node groups in our words and in AWS's: the request that makes one, and the reading of what is there.

Pure functions over plain dicts, so that every odd state of a group is one test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moerl_operator.core.world import NodeGroupObservation, NodeGroupSpec

CAPACITY_TYPES = {
    "OnDemand": "ON_DEMAND",
    "Spot": "SPOT",
    "Reserved": "ON_DEMAND",
    "CapacityBlock": "CAPACITY_BLOCK",
}
AUTOSCALER_TAG_PREFIX = "k8s.io/cluster-autoscaler/"
# Auto Scaling writes this, with the time of the change before it, into the cause of the first activities after one.
_RESIZED = re.compile(r"^.*?changing the desired capacity from \d+ to (\d+)")


def create_request(spec: NodeGroupSpec, cluster_name: str) -> dict[str, Any]:
    """Parameters of CreateNodegroup: size 0 and min 0, since EKS fails a group for good that cannot buy at once.

    What the launch template holds must not be said again here (disk, image, the type of a Capacity Block).
    """
    request: dict[str, Any] = {
        "clusterName": cluster_name,
        "nodegroupName": spec.name,
        "scalingConfig": {"minSize": 0, "maxSize": max(1, spec.maximum), "desiredSize": 0},
        "subnets": [spec.subnet],
        "nodeRole": spec.node_role_arn,
        "capacityType": CAPACITY_TYPES[spec.capacity_type],
        "labels": dict(spec.labels),
        "taints": [{"key": key, "value": value, "effect": "NO_SCHEDULE"} for key, value in spec.taints],
        "tags": dict(spec.tags),
        "launchTemplate": {"name": spec.name, "version": "1"},
        # A replaced node takes the scarce capacity of the one it replaces, never more.
        "updateConfig": {"maxUnavailable": 1},
    }
    if spec.capacity_type != "CapacityBlock":
        request["instanceTypes"] = list(spec.instance_types)
    if not spec.ami_id:
        request["amiType"] = spec.ami_type
        if spec.release_version:
            request["releaseVersion"] = spec.release_version
    return request


def observed(
    group: Mapping[str, Any],
    scaling_group: Mapping[str, Any] | None,
    activities: Iterable[Mapping[str, Any]] = (),
    *,
    last_before_resize: str = "",
) -> NodeGroupObservation:
    """One group from DescribeNodegroup, its Auto Scaling group (None: not there yet, or gone) and its activities.

    `last_before_resize` is the id of the newest activity at our latest change of size, where it is known.
    """
    scaling = group.get("scalingConfig") or {}
    instances = (scaling_group or {}).get("Instances") or []
    states = [str(instance.get("LifecycleState", "")) for instance in instances]
    zones = (scaling_group or {}).get("AvailabilityZones") or []
    tags = [str(tag.get("Key", "")) for tag in (scaling_group or {}).get("Tags") or []]
    desired = int((scaling_group or {}).get("DesiredCapacity", 0))
    return NodeGroupObservation(
        name=group["nodegroupName"],
        status=group.get("status") or "",
        tags=dict(group.get("tags") or {}),
        desired=desired,
        minimum=int((scaling_group or {}).get("MinSize", scaling.get("minSize", 0))),
        maximum=int((scaling_group or {}).get("MaxSize", scaling.get("maxSize", 0))),
        in_service=sum(state == "InService" for state in states),
        pending=sum(state.startswith("Pending") for state in states),
        asg_name=(scaling_group or {}).get("AutoScalingGroupName") or scaling_group_name(group),
        instance_types=tuple(group.get("instanceTypes") or ()),
        zone=zones[0] if len(zones) == 1 else "",
        launch_template_id=(group.get("launchTemplate") or {}).get("id") or "",
        issues=tuple(
            (str(issue.get("code")), str(issue.get("message") or ""))
            for issue in (group.get("health") or {}).get("issues") or []
        ),
        failures=failures_since_resize(activities, desired, last_before_resize),
        autoscaler_tags=any(key.startswith(AUTOSCALER_TAG_PREFIX) for key in tags),
        arn=group.get("nodegroupArn") or "",
        release_version=group.get("releaseVersion") or "",
    )


def scaling_group_name(group: Mapping[str, Any]) -> str:
    """Name of the group's Auto Scaling group; '' until EKS has made it."""
    groups = (group.get("resources") or {}).get("autoScalingGroups") or []
    return str(groups[0].get("name") or "") if groups else ""


def failures_since_resize(
    activities: Iterable[Mapping[str, Any]], desired: int, last_before_resize: str = ""
) -> tuple[str, ...]:
    """Messages of failed activities, newest first, back to the latest change of the desired size.

    Auto Scaling names a change of size in the first activities that follow it, which may still be to come: then
    what is there belongs to an earlier size. A retry under way that names the same change takes nothing back. After
    a restart, when `last_before_resize` is not known and the size is again what it was, the failures of that earlier
    time count until the next activity.
    """
    messages: list[str] = []
    change = ""
    for activity in activities:
        resized = _RESIZED.search(activity.get("Cause") or "")
        if change and (resized is None or resized[0] != change):
            break
        if last_before_resize and activity.get("ActivityId") == last_before_resize:
            break
        if activity.get("StatusCode") in ("Failed", "Cancelled") and activity.get("StatusMessage"):
            messages.append(str(activity["StatusMessage"]))
        if resized is not None:
            if int(resized[1]) != desired:
                return ()
            change = resized[0]
    return tuple(messages)
