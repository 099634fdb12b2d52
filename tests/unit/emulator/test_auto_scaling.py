"""Sizes, instances and activities of a node group's Auto Scaling group; capacity that is not there."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.emulator import CLUSTER, SUBNET_A, SUBNET_B, SUBNET_C, Emulator


class Scaled:
    """A node group with its Auto Scaling group."""

    def __init__(self, emulator: Emulator, **more: Any) -> None:
        self.emulator = emulator
        self.asg = emulator.client("autoscaling")
        self.eks = emulator.client("eks")
        self.ec2 = emulator.client("ec2")
        self.name = emulator.create_group("g", **more)

    def desire(self, size: int) -> None:
        self.asg.set_desired_capacity(AutoScalingGroupName=self.name, DesiredCapacity=size, HonorCooldown=False)

    def describe(self) -> dict[str, Any]:
        return self.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[self.name])["AutoScalingGroups"][0]

    def lifecycles(self) -> list[str]:
        return [instance["LifecycleState"] for instance in self.describe()["Instances"]]

    def ids(self) -> list[str]:
        return [instance["InstanceId"] for instance in self.describe()["Instances"]]

    def activities(self) -> list[dict[str, Any]]:
        return self.asg.describe_scaling_activities(AutoScalingGroupName=self.name)["Activities"]

    def group(self) -> dict[str, Any]:
        return self.eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="g")["nodegroup"]


@pytest.fixture
def scaled(emulator: Emulator) -> Scaled:
    return Scaled(emulator)


def test_desired_becomes_pending_then_in_service(scaled: Scaled) -> None:
    scaled.desire(3)
    assert scaled.lifecycles() == []
    scaled.emulator.advance(10)
    assert scaled.lifecycles() == ["Pending"] * 3
    assert {activity["StatusCode"] for activity in scaled.activities()} == {"InProgress"}
    scaled.emulator.advance(45)
    assert scaled.lifecycles() == ["InService"] * 3
    newest = scaled.activities()[0]
    assert newest["StatusCode"] == "Successful"
    assert newest["Description"] == f"Launching a new EC2 instance: {scaled.ids()[-1]}"
    assert "changing the desired capacity from 0 to 3" in newest["Cause"]
    assert newest["EndTime"] > newest["StartTime"]


def test_scaling_in_takes_the_oldest_and_ends_it(scaled: Scaled) -> None:
    scaled.desire(1)
    scaled.emulator.advance(400)
    (oldest,) = scaled.ids()
    scaled.desire(2)
    scaled.emulator.advance(400)
    scaled.desire(1)
    state = {entry["InstanceId"]: entry["LifecycleState"] for entry in scaled.describe()["Instances"]}
    assert state[oldest] == "Terminating:Wait"
    scaled.emulator.advance(60)
    found = scaled.ec2.describe_instances(InstanceIds=[oldest])["Reservations"][0]["Instances"][0]
    assert found["State"]["Name"] == "shutting-down"
    scaled.emulator.advance(30)
    assert oldest not in scaled.ids()
    assert scaled.activities()[0]["Description"] == f"Terminating EC2 instance: {oldest}"
    assert scaled.activities()[0]["StatusCode"] == "Successful"
    assert len(scaled.ids()) == 1


@pytest.mark.parametrize(
    ("size", "message"),
    [(9, "New SetDesiredCapacity value 9 is above max value 8"), (0, "value 0 is below min value 1")],
)
def test_sizes_outside_the_bounds_are_refused(scaled: Scaled, size: int, message: str) -> None:
    scaled.asg.update_auto_scaling_group(AutoScalingGroupName=scaled.name, MinSize=1)
    with pytest.raises(ClientError, match=message) as error:
        scaled.desire(size)
    assert error.value.response["Error"]["Code"] == "ValidationError"


def test_bounds_pull_the_desired_size_with_them(scaled: Scaled) -> None:
    scaled.asg.update_auto_scaling_group(AutoScalingGroupName=scaled.name, MinSize=2, MaxSize=5)
    assert scaled.describe()["DesiredCapacity"] == 2
    for wrong in ({"MinSize": 6}, {"DesiredCapacity": 6}, {"DesiredCapacity": 1}, {"DefaultCooldown": 1}):
        with pytest.raises(ClientError) as error:
            scaled.asg.update_auto_scaling_group(AutoScalingGroupName=scaled.name, **wrong)
        assert error.value.response["Error"]["Code"] == "ValidationError"


def test_an_unknown_group(scaled: Scaled) -> None:
    with pytest.raises(ClientError, match="not found") as error:
        scaled.asg.set_desired_capacity(AutoScalingGroupName="other", DesiredCapacity=1)
    assert error.value.response["Error"]["Code"] == "ValidationError"
    assert scaled.asg.describe_auto_scaling_groups(AutoScalingGroupNames=["other"])["AutoScalingGroups"] == []


def test_chosen_instances_end_with_and_without_replacement(scaled: Scaled) -> None:
    scaled.desire(4)
    scaled.emulator.advance(400)
    first, second, third, _ = scaled.ids()
    terminate = scaled.asg.terminate_instance_in_auto_scaling_group
    activity = terminate(InstanceId=second, ShouldDecrementDesiredCapacity=True)["Activity"]
    assert activity["Description"] == f"Terminating EC2 instance: {second}"
    terminate(InstanceId=third, ShouldDecrementDesiredCapacity=False)
    scaled.emulator.advance(400)
    assert scaled.describe()["DesiredCapacity"] == 3
    ids = scaled.ids()
    assert first in ids
    assert not {second, third} & set(ids)
    assert len(ids) == 3
    with pytest.raises(ClientError, match="Instance Id not found - No managed instance found") as error:
        terminate(InstanceId=second, ShouldDecrementDesiredCapacity=True)
    assert error.value.response["Error"]["Code"] == "ValidationError"


def test_several_instances_of_a_group_end_in_one_call(scaled: Scaled) -> None:
    scaled.desire(3)
    scaled.emulator.advance(400)
    scaled.asg.terminate_instance_in_auto_scaling_group(
        AutoScalingGroupName=scaled.name, InstanceIds=scaled.ids()[:2], ShouldDecrementDesiredCapacity=True
    )
    scaled.emulator.advance(200)
    assert (len(scaled.ids()), scaled.describe()["DesiredCapacity"]) == (1, 1)


def test_no_decrement_below_the_minimum(scaled: Scaled) -> None:
    scaled.asg.update_auto_scaling_group(AutoScalingGroupName=scaled.name, MinSize=1)
    scaled.emulator.advance(400)
    with pytest.raises(ClientError, match="will violate group's min size"):
        scaled.asg.terminate_instance_in_auto_scaling_group(
            InstanceId=scaled.ids()[0], ShouldDecrementDesiredCapacity=True
        )
    assert scaled.lifecycles() == ["InService"]


def test_an_instance_that_dies_is_replaced(scaled: Scaled) -> None:
    scaled.desire(1)
    scaled.emulator.advance(400)
    (dead,) = scaled.ids()
    scaled.ec2.terminate_instances(InstanceIds=[dead])
    scaled.emulator.advance(100)
    assert len(scaled.ids()) == 1
    assert dead not in scaled.ids()
    causes = [activity["Cause"] for activity in scaled.activities() if dead in activity["Description"]]
    assert "EC2 health check" in causes[0]


def test_the_cluster_autoscalers_tags_are_there_and_come_off(scaled: Scaled) -> None:
    keys = {tag["Key"] for tag in scaled.describe()["Tags"]}
    own = {"k8s.io/cluster-autoscaler/enabled", f"k8s.io/cluster-autoscaler/{CLUSTER}"}
    assert own | {"eks:cluster-name", "eks:nodegroup-name"} <= keys
    scaled.asg.delete_tags(
        Tags=[{"ResourceId": scaled.name, "ResourceType": "auto-scaling-group", "Key": key} for key in own]
    )
    assert not own & {tag["Key"] for tag in scaled.describe()["Tags"]}
    scaled.asg.create_or_update_tags(
        Tags=[
            {
                "ResourceId": scaled.name,
                "ResourceType": "auto-scaling-group",
                "Key": "moerl.dev/x",
                "Value": "1",
                "PropagateAtLaunch": True,
            }
        ]
    )
    found = scaled.asg.describe_tags(Filters=[{"Name": "key", "Values": ["moerl.dev/x"]}])["Tags"]
    assert [(tag["ResourceId"], tag["Value"]) for tag in found] == [(scaled.name, "1")]
    filters = [{"Name": "tag:eks:nodegroup-name", "Values": ["g"]}]
    assert len(scaled.asg.describe_auto_scaling_groups(Filters=filters)["AutoScalingGroups"]) == 1
    scaled.desire(1)
    scaled.emulator.advance(20)
    tags = {tag["Key"] for tag in scaled.ec2.describe_instances()["Reservations"][0]["Instances"][0]["Tags"]}
    assert "moerl.dev/x" in tags
    assert not own & tags


# --- capacity -----------------------------------------------------------------------------------------------------


def test_without_capacity_it_retries_while_desired_stays_and_eks_degrades_for_good(emulator: Emulator) -> None:
    scaled = Scaled(emulator, types=("p5en.48xlarge",))
    emulator.fault("insufficient-capacity", instanceType="p5en.48xlarge", zone="us-east-1a")
    scaled.desire(2)
    emulator.advance(69)
    assert {activity["StatusCode"] for activity in scaled.activities()} == {"InProgress"}
    emulator.advance(1)
    failed = scaled.activities()[0]
    assert failed["StatusCode"] == "Failed"
    assert failed["StatusMessage"].startswith(
        "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient "
        "p5en.48xlarge capacity in the Availability Zone you requested (us-east-1a)."
    )
    assert scaled.group()["status"] == "ACTIVE"
    emulator.advance(120)
    group = scaled.group()
    assert group["status"] == "DEGRADED"
    assert group["health"]["issues"][0]["code"] == "AsgInstanceLaunchFailures"
    assert group["health"]["issues"][0]["resourceIds"] == [scaled.name]
    emulator.advance(600)
    assert sum(activity["StatusCode"] == "Failed" for activity in scaled.activities()) >= 4
    with pytest.raises(ClientError, match="currently not in Active State"):
        scaled.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName="g", scalingConfig={"desiredSize": 0})
    emulator.clear_faults()
    emulator.advance(400)
    assert scaled.lifecycles() == ["InService"] * 2  # the group went on buying
    scaled.desire(0)
    emulator.advance(3000)
    assert (scaled.ids(), scaled.group()["status"]) == ([], "DEGRADED")


def test_an_account_may_take_updates_of_a_degraded_group(emulator: Emulator) -> None:
    scaled = Scaled(emulator)
    emulator.fault("insufficient-capacity")
    emulator.fault("degraded-accepts-updates")
    scaled.desire(1)
    emulator.advance(300)
    assert scaled.group()["status"] == "DEGRADED"
    scaled.eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName="g", scalingConfig={"desiredSize": 0})
    emulator.advance(30)
    assert (scaled.describe()["DesiredCapacity"], scaled.group()["status"]) == (0, "DEGRADED")


def test_lowering_desired_stops_the_attempts(emulator: Emulator) -> None:
    scaled = Scaled(emulator)
    emulator.fault("insufficient-capacity")
    scaled.desire(1)
    emulator.advance(20)
    scaled.desire(0)
    emulator.advance(300)
    count = len(scaled.activities())
    emulator.advance(3000)
    assert len(scaled.activities()) == count
    assert scaled.group()["status"] == "ACTIVE"


def test_a_pool_with_a_few_instances_gives_a_partial_gang(emulator: Emulator) -> None:
    scaled = Scaled(emulator, types=("p5en.48xlarge",))
    emulator.fault("insufficient-capacity", instanceType="p5en.48xlarge", available=3)
    scaled.desire(8)
    emulator.advance(500)
    assert scaled.lifecycles() == ["InService"] * 3
    assert scaled.activities()[0]["StatusCode"] in ("Failed", "InProgress")


def test_spot_and_quota_speak_their_own_words(emulator: Emulator) -> None:
    scaled = Scaled(emulator, types=("p5en.48xlarge",), capacityType="SPOT")
    emulator.fault("insufficient-capacity", capacityType="SPOT")
    scaled.desire(1)
    emulator.advance(70)
    assert "UnfulfillableCapacity" in scaled.activities()[0]["StatusMessage"]
    emulator.clear_faults()
    emulator.fault("quota", name="instances", value=0)
    emulator.advance(180)
    assert "MaxSpotInstanceCountExceeded" in scaled.activities()[0]["StatusMessage"]
    assert scaled.describe()["CapacityRebalance"] is True


def test_a_launch_failure_with_chosen_words(emulator: Emulator) -> None:
    scaled = Scaled(emulator)
    emulator.fault("launch-failure", nodegroup="g", times=1, code="InvalidParameterCombination", message="bad card.")
    scaled.desire(1)
    emulator.advance(70)
    assert "InvalidParameterCombination - bad card." in scaled.activities()[0]["StatusMessage"]
    emulator.advance(400)
    assert scaled.lifecycles() == ["InService"]


def test_creation_without_capacity_ends_in_create_failed(emulator: Emulator) -> None:
    emulator.fault("insufficient-capacity")
    emulator.create_group("g", size=1, active=False)
    emulator.advance(1799)
    eks = emulator.client("eks")
    assert eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="g")["nodegroup"]["status"] == "CREATING"
    emulator.advance(1)
    group = eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="g")["nodegroup"]
    assert group["status"] == "CREATE_FAILED"
    assert group["health"]["issues"][0]["code"] == "AsgInstanceLaunchFailures"


def test_another_type_or_zone_is_tried_where_the_first_is_full(emulator: Emulator) -> None:
    emulator.fault("insufficient-capacity", instanceType="c7i.4xlarge", zone="us-east-1a")
    emulator.fault("insufficient-capacity", zone="us-east-1b")
    scaled = Scaled(emulator, types=("c7i.4xlarge", "c7i.8xlarge"), size=2, subnets=[SUBNET_A, SUBNET_B])
    found = {(entry["InstanceType"], entry["AvailabilityZone"]) for entry in scaled.describe()["Instances"]}
    assert found == {("c7i.8xlarge", "us-east-1a")}


def test_zones_are_balanced(emulator: Emulator) -> None:
    scaled = Scaled(emulator, size=6, subnets=[SUBNET_A, SUBNET_B, SUBNET_C])
    zones = [entry["AvailabilityZone"] for entry in scaled.describe()["Instances"]]
    assert sorted(zones) == sorted(["us-east-1a", "us-east-1b", "us-east-1c"] * 2)


def test_a_zone_that_does_not_offer_the_type_launches_nothing(emulator: Emulator) -> None:
    scaled = Scaled(emulator, types=("p5en.48xlarge",), subnets=[SUBNET_B])
    scaled.desire(1)
    emulator.advance(70)
    assert (
        "is not supported in your requested Availability Zone (us-east-1b)" in scaled.activities()[0]["StatusMessage"]
    )


def test_activities_are_paged_and_bounded(emulator: Emulator) -> None:
    scaled = Scaled(emulator, maximum=300)
    for size in (60, 0, 60, 0):
        scaled.desire(size)
        emulator.advance(800)
    pages = scaled.asg.get_paginator("describe_scaling_activities").paginate(
        AutoScalingGroupName=scaled.name, PaginationConfig={"PageSize": 30}
    )
    found = [activity["ActivityId"] for page in pages for activity in page["Activities"]]
    assert len(found) == len(set(found)) == 100
