"""Reading groups in every state, and asking for new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moerl_operator.aws.node_group import create_request, failures_since_resize, observed
from moerl_operator.core.world import NodeGroupSpec

Make = Callable[..., NodeGroupSpec]

GROUP: dict[str, Any] = {
    "nodegroupName": "moerl-0a1b2c3d-trainer-1",
    "nodegroupArn": "arn:aws:eks:x",
    "status": "ACTIVE",
    "tags": {"a": "b"},
    "scalingConfig": {"minSize": 0, "maxSize": 16, "desiredSize": 0},
    "instanceTypes": ["p5en.48xlarge"],
    "launchTemplate": {"id": "lt-1"},
    "resources": {"autoScalingGroups": [{"name": "eks-1"}]},
    "health": {"issues": [{"code": "AsgInstanceLaunchFailures", "message": "no capacity"}]},
}


def scaling(*states: str, desired: int = 2, tags: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "AutoScalingGroupName": "eks-1",
        "DesiredCapacity": desired,
        "MinSize": 0,
        "MaxSize": 16,
        "AvailabilityZones": ["us-east-1a"],
        "Instances": [{"LifecycleState": state} for state in states],
        "Tags": [{"Key": key} for key in tags],
    }


def test_sizes_come_from_the_scaling_group_not_from_eks() -> None:
    seen = observed(GROUP, scaling("InService", "Pending:Wait", "Terminating", desired=4))
    assert (seen.desired, seen.in_service, seen.pending, seen.maximum) == (4, 1, 1, 16)
    assert (seen.zone, seen.asg_name, seen.launch_template_id) == ("us-east-1a", "eks-1", "lt-1")
    assert seen.issues == (("AsgInstanceLaunchFailures", "no capacity"),)


def test_a_group_that_is_just_being_made_has_no_scaling_group() -> None:
    seen = observed({"nodegroupName": "n", "status": "CREATING"}, None)
    assert (seen.status, seen.asg_name, seen.desired, seen.issues) == ("CREATING", "", 0, ())


def test_the_autoscalers_tags_are_noticed() -> None:
    assert observed(GROUP, scaling(tags=("k8s.io/cluster-autoscaler/enabled",))).autoscaler_tags
    assert not observed(GROUP, scaling(tags=("eks:nodegroup-name",))).autoscaler_tags


def test_failures_count_from_the_latest_change_of_size() -> None:
    resize = "At X a user request explicitly set group desired capacity changing the desired capacity from 0 to 2."
    activities = [
        {"StatusCode": "Failed", "StatusMessage": "third", "Cause": "At Y an instance was started"},
        {"StatusCode": "Successful", "StatusMessage": "", "Cause": "At Y an instance was started"},
        {"StatusCode": "Failed", "StatusMessage": "first", "Cause": resize},
        {"StatusCode": "Failed", "StatusMessage": "of an earlier size", "Cause": resize.replace("At X", "At W")},
    ]
    assert failures_since_resize(activities, 2) == ("third", "first")
    assert failures_since_resize(activities, 1) == ()  # the size has changed since, and nothing has happened yet


def test_a_retry_under_way_takes_no_failure_back() -> None:
    resize = "At X a user request explicitly set group desired capacity changing the desired capacity from 0 to 2."
    activities = [
        {"StatusCode": "InProgress", "Cause": f"{resize}  At Z an instance was started"},
        {"StatusCode": "Failed", "StatusMessage": "no capacity", "Cause": f"{resize}  At Y an instance was started"},
        {"StatusCode": "Failed", "StatusMessage": "of an earlier size", "Cause": "At V an instance was started"},
    ]
    assert failures_since_resize(activities, 2) == ("no capacity",)
    assert failures_since_resize(activities, 1) == ()


def test_failures_count_from_the_last_activity_before_our_change() -> None:
    activities = [
        {"ActivityId": "b", "StatusCode": "Failed", "StatusMessage": "new", "Cause": "x"},
        {"ActivityId": "a", "StatusCode": "Failed", "StatusMessage": "old", "Cause": "x"},
    ]
    assert failures_since_resize(activities, 2, "a") == ("new",)
    assert failures_since_resize(activities, 2, "b") == ()


def test_a_group_is_asked_for_empty_and_in_one_subnet(spec: Make) -> None:
    request = create_request(spec(), "c1")
    assert request["scalingConfig"] == {"minSize": 0, "maxSize": 16, "desiredSize": 0}
    assert request["subnets"] == ["subnet-0000000000000000a"]
    assert request["taints"] == [{"key": "moerl.dev/dedicated", "value": "0a1b2c3d", "effect": "NO_SCHEDULE"}]
    assert request["capacityType"] == "ON_DEMAND"


def test_what_the_template_says_is_not_said_again(spec: Make) -> None:
    block = create_request(spec(capacity_type="CapacityBlock", capacity_reservation="cr-1"), "c1")
    assert "instanceTypes" not in block
    custom = create_request(spec(ami_id="ami-1", release_version="1"), "c1")
    assert not {"amiType", "releaseVersion"} & set(custom)
