"""EC2 Auto Scaling: the groups that EKS makes, query protocol. What follows from a size is in simulation.py."""

from __future__ import annotations

from typing import Any

from .clock import Clock
from .errors import AwsError
from .simulation import Simulation
from .timings import Timings
from .world import (
    ACCOUNT,
    SUBNETS,
    ZONES,
    Activity,
    AutoScalingGroup,
    Instance,
    World,
)

Params = dict[str, Any]


def _validation(message: str) -> AwsError:
    return AwsError("ValidationError", message, status=400)


class AutoScaling:
    """The operations; each takes checked parameters and returns the members of the answer."""

    def __init__(self, world: World, clock: Clock, simulation: Simulation, timings: Timings) -> None:
        self._world = world
        self._clock = clock
        self._simulation = simulation
        self._timings = timings

    def _group(self, name: str) -> AutoScalingGroup:
        group = self._world.scaling_groups.get(name)
        if group is None:
            raise _validation(f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
        return group

    # --- reading -------------------------------------------------------------------------------------------------

    def describe_auto_scaling_groups(self, params: Params) -> Params:
        """Groups by name or tag filter, paged; unknown names are left out, as AWS does."""
        wanted = params.get("AutoScalingGroupNames")
        groups = [g for name, g in sorted(self._world.scaling_groups.items()) if not wanted or name in wanted]
        groups = [g for g in groups if all(_tag_filter(g, entry) for entry in params.get("Filters", []))]
        page, token = _page(groups, params, default=50, most=100)
        return {"AutoScalingGroups": [self._describe(group) for group in page], "NextToken": token}

    def _describe(self, group: AutoScalingGroup) -> Params:
        zones = [SUBNETS[subnet] for subnet in group.subnets]
        template = self._world.templates.get(group.template_id)
        specification = {
            "LaunchTemplateId": group.template_id,
            "LaunchTemplateName": template.name if template else "",
            "Version": "1",
        }
        node_group = self._world.node_groups[f"{group.cluster}/{group.nodegroup}"]
        spot = node_group.capacity_type == "SPOT"
        return {
            "AutoScalingGroupName": group.name,
            "AutoScalingGroupARN": group.arn,
            "MixedInstancesPolicy": {
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": specification,
                    "Overrides": [{"InstanceType": name} for name in node_group.instance_types],
                },
                "InstancesDistribution": {
                    "OnDemandAllocationStrategy": "prioritized",
                    "OnDemandBaseCapacity": 0,
                    "OnDemandPercentageAboveBaseCapacity": 0 if spot else 100,
                    "SpotAllocationStrategy": "price-capacity-optimized",
                },
            },
            "MinSize": group.minimum,
            "MaxSize": group.maximum,
            "DesiredCapacity": group.desired,
            "DefaultCooldown": 300,
            "AvailabilityZones": zones,
            "AvailabilityZoneIds": [ZONES[zone] for zone in zones],
            "LoadBalancerNames": [],
            "TargetGroupARNs": [],
            "HealthCheckType": "EC2",
            "HealthCheckGracePeriod": 15,
            "Instances": [_instance(i) for i in self._world.instances_of(group.name) if i.lifecycle],
            "CreatedTime": group.created_at,
            "SuspendedProcesses": [],
            "VPCZoneIdentifier": ",".join(group.subnets),
            "EnabledMetrics": [],
            "Status": "Delete in progress" if group.deleting else None,
            "Tags": [_tag(group, key) for key in sorted(group.tags)],
            "TerminationPolicies": ["AllocationStrategy", "OldestLaunchTemplate", "OldestInstance"],
            "NewInstancesProtectedFromScaleIn": False,
            "ServiceLinkedRoleARN": (
                f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
            ),
            "CapacityRebalance": spot,
        }

    def describe_auto_scaling_instances(self, params: Params) -> Params:
        """Instances of all groups, or those named."""
        wanted = params.get("InstanceIds")
        found = [i for i in self._world.instances.values() if i.lifecycle and (not wanted or i.id in wanted)]
        page, token = _page(found, params, default=50, most=50)
        answer = [_instance(i) | {"AutoScalingGroupName": i.asg, "HealthStatus": _health(i).upper()} for i in page]
        return {"AutoScalingInstances": answer, "NextToken": token}

    def describe_scaling_activities(self, params: Params) -> Params:
        """Activities, newest first."""
        if "AutoScalingGroupName" in params:
            groups = [self._group(params["AutoScalingGroupName"])]
        else:
            groups = list(self._world.scaling_groups.values())
        found = [(group, activity) for group in groups for activity in reversed(group.activities)]
        ids = params.get("ActivityIds")
        if ids:
            found = [(group, activity) for group, activity in found if activity.id in ids]
        page, token = _page(found, params, default=100, most=100)
        return {"Activities": [_activity(group, activity) for group, activity in page], "NextToken": token}

    def describe_tags(self, params: Params) -> Params:
        """Tags of the groups, by filters auto-scaling-group, key, value, propagate-at-launch."""
        tags = [_tag(group, key) for group in self._world.scaling_groups.values() for key in sorted(group.tags)]
        for entry in params.get("Filters", []):
            field = {
                "auto-scaling-group": "ResourceId",
                "key": "Key",
                "value": "Value",
                "propagate-at-launch": "PropagateAtLaunch",
            }.get(entry.get("Name", ""))
            if field is None:
                raise _validation(f"Filter type {entry.get('Name')} is not correct.")
            values = [str(value).lower() for value in entry.get("Values", [])]
            tags = [tag for tag in tags if str(tag[field]).lower() in values]
        page, token = _page(tags, params, default=50, most=100)
        return {"Tags": page, "NextToken": token}

    # --- sizes ---------------------------------------------------------------------------------------------------

    def set_desired_capacity(self, params: Params) -> Params:
        """Sets the desired size within minimum and maximum; the instances follow."""
        group = self._group(params["AutoScalingGroupName"])
        desired = params["DesiredCapacity"]
        if desired > group.maximum:
            raise _validation(
                f"New SetDesiredCapacity value {desired} is above max value {group.maximum} for the AutoScalingGroup."
            )
        if desired < group.minimum:
            raise _validation(
                f"New SetDesiredCapacity value {desired} is below min value {group.minimum} for the AutoScalingGroup."
            )
        self._not_deleting(group)
        self._set_desired(group, desired, "a user request explicitly set group desired capacity changing")
        return {}

    def update_auto_scaling_group(self, params: Params) -> Params:
        """Minimum, maximum and desired size; desired is pulled into the bounds where it is not given."""
        group = self._group(params["AutoScalingGroupName"])
        self._not_deleting(group)
        unsupported = sorted(set(params) - {"AutoScalingGroupName", "MinSize", "MaxSize", "DesiredCapacity"})
        if unsupported:
            raise _validation(f"The emulator does not change {', '.join(unsupported)} of a group that EKS manages.")
        minimum, maximum = params.get("MinSize", group.minimum), params.get("MaxSize", group.maximum)
        if minimum < 0 or maximum < 0:
            raise _validation("Min and max size must not be negative.")
        if minimum > maximum:
            raise _validation(f"Max bound, {maximum}, must be greater than or equal to min bound, {minimum}")
        desired = params.get("DesiredCapacity")
        if desired is not None and not minimum <= desired <= maximum:
            raise _validation(
                f"Desired capacity:{desired} must be between the specified min size:{minimum} and max size:{maximum}"
            )
        group.minimum, group.maximum = minimum, maximum
        target = desired if desired is not None else min(max(group.desired, minimum), maximum)
        self._set_desired(group, target, "a user request update of AutoScalingGroup constraints changed")
        return {}

    def _not_deleting(self, group: AutoScalingGroup) -> None:
        if group.deleting:
            raise _validation(f"AutoScalingGroup {group.name} is pending delete and cannot be changed.")

    def _set_desired(self, group: AutoScalingGroup, desired: int, why: str) -> None:
        now = self._clock.now()
        if desired != group.desired:
            stamp = self._simulation.stamp(now)
            group.cause = f"At {stamp} {why} the desired capacity from {group.desired} to {desired}."
        group.desired = desired
        node_group = self._world.node_groups[f"{group.cluster}/{group.nodegroup}"]
        if node_group.sync_due is None and node_group.status != "DELETING":
            node_group.sync_due = now + self._timings.group_sync_lag

    def terminate_instance_in_auto_scaling_group(self, params: Params) -> Params:
        """Ends chosen instances; with the decrement the desired size falls too, else they are replaced."""
        ids = params.get("InstanceIds") or ([params["InstanceId"]] if "InstanceId" in params else [])
        if not ids:
            raise _validation("1 validation error detected: either InstanceId or InstanceIds must be given.")
        if "InstanceId" in params and "InstanceIds" in params:
            raise _validation("InstanceId and InstanceIds cannot be given together.")
        if "InstanceIds" in params and "AutoScalingGroupName" not in params:
            raise _validation("AutoScalingGroupName is required with InstanceIds.")
        chosen = [self._member(instance_id, params.get("AutoScalingGroupName")) for instance_id in ids]
        decrement = params["ShouldDecrementDesiredCapacity"]
        activity: Params = {}
        for instance in chosen:
            group = self._group(instance.asg)
            if decrement and group.desired - 1 < group.minimum:
                raise _validation(
                    "Currently, desiredSize equals minSize "
                    f"({group.minimum}). Terminating instance without replacement will violate group's min size "
                    "constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's min size."
                )
            cause = (
                f"At {self._simulation.stamp(self._clock.now())} instance {instance.id} was taken out of service in "
                "response to a user request."
            )
            if decrement:
                self._set_desired(group, group.desired - 1, "a user request terminated an instance, changing")
            self._world.now = self._clock.now()
            ended = self._simulation.end_instance(group, instance, cause=cause)
            activity = activity or _activity(group, ended)
        return {"Activity": activity}

    def _member(self, instance_id: str, group: str | None) -> Instance:
        instance = self._world.instances.get(instance_id)
        if instance is None or not instance.counts or (group is not None and instance.asg != group):
            text = f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
            raise _validation(text)
        return instance

    # --- tags ----------------------------------------------------------------------------------------------------

    def create_or_update_tags(self, params: Params) -> Params:
        """Tags of groups; they reach instances launched later, where they propagate."""
        for tag in params["Tags"]:
            group = self._tagged(tag)
            group.tags[tag["Key"]] = {"value": tag.get("Value", ""), "propagate": tag.get("PropagateAtLaunch", False)}
            if len(group.tags) > 50:
                raise AwsError("LimitExceeded", "A group has at most 50 tags.")
        return {}

    def delete_tags(self, params: Params) -> Params:
        """Removes tags; one that is not there is no error."""
        for tag in params["Tags"]:
            self._tagged(tag).tags.pop(tag["Key"], None)
        return {}

    def _tagged(self, tag: Params) -> AutoScalingGroup:
        if tag.get("ResourceType") not in (None, "auto-scaling-group"):
            raise _validation(f"The resource type {tag.get('ResourceType')} is not valid.")
        if not tag.get("ResourceId"):
            raise _validation("A tag needs the resource id of its group.")
        return self._group(tag["ResourceId"])


def _page(items: list[Any], params: Params, *, default: int, most: int) -> tuple[list[Any], str | None]:
    size, token = params.get("MaxRecords", default), params.get("NextToken", "0")
    if not 1 <= size <= most:
        raise _validation(f"MaxRecords must be between 1 and {most}.")
    if not token.isdecimal():
        raise AwsError("InvalidNextToken", "The NextToken value is not valid.")
    start = int(token)
    return items[start : start + size], str(start + size) if start + size < len(items) else None


def _tag_filter(group: AutoScalingGroup, entry: Params) -> bool:
    name, values = entry.get("Name", ""), entry.get("Values", [])
    if name == "tag-key":
        return any(key in values for key in group.tags)
    if name == "tag-value":
        return any(tag["value"] in values for tag in group.tags.values())
    if name.startswith("tag:"):
        return name[4:] in group.tags and group.tags[name[4:]]["value"] in values
    raise _validation(f"Filter type {name} is not correct. Allowed filter types are: tag-key, tag-value, tag:<key>")


def _health(instance: Instance) -> str:
    return "Healthy" if instance.state in ("pending", "running") else "Unhealthy"


def _instance(instance: Instance) -> Params:
    return {
        "InstanceId": instance.id,
        "InstanceType": instance.type,
        "AvailabilityZone": instance.zone,
        "LifecycleState": instance.lifecycle,
        "HealthStatus": _health(instance),
        "LaunchTemplate": {"LaunchTemplateId": instance.template_id, "Version": instance.template_version},
        "ProtectedFromScaleIn": False,
    }


def _tag(group: AutoScalingGroup, key: str) -> Params:
    tag = group.tags[key]
    return {
        "ResourceId": group.name,
        "ResourceType": "auto-scaling-group",
        "Key": key,
        "Value": tag["value"],
        "PropagateAtLaunch": tag["propagate"],
    }


def _activity(group: AutoScalingGroup, activity: Activity) -> Params:
    return {
        "ActivityId": activity.id,
        "AutoScalingGroupName": group.name,
        "Description": activity.description,
        "Cause": activity.cause,
        "StartTime": activity.started_at,
        "EndTime": activity.ended_at,
        "StatusCode": activity.status,
        "StatusMessage": activity.message or None,
        "Progress": activity.progress,
        "Details": activity.details,
        "AutoScalingGroupARN": group.arn,
    }
