"""The life of a node group as EKS shows it, through a stock client."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.emulator import CLUSTER, NODE_ROLE, SUBNET_A, SUBNET_C, Emulator


def refusal(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    """(code, HTTP status) of a refused call."""
    response = error.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


class Group:
    """One node group under test."""

    def __init__(self, emulator: Emulator, name: str = "g") -> None:
        self.emulator = emulator
        self.eks = emulator.client("eks")
        self.asg = emulator.client("autoscaling")
        self.name = name

    @property
    def key(self) -> dict[str, str]:
        return {"clusterName": CLUSTER, "nodegroupName": self.name}

    def create(self, *, size: int = 0, token: str = "token", **more: Any) -> dict[str, Any]:
        request = {
            **self.key,
            "subnets": [SUBNET_A],
            "nodeRole": NODE_ROLE,
            "scalingConfig": {"minSize": 0, "maxSize": 8, "desiredSize": size},
            "instanceTypes": ["c7i.4xlarge"],
            "clientRequestToken": token,
        }
        return self.eks.create_nodegroup(**request | more)["nodegroup"]

    def describe(self) -> dict[str, Any]:
        return self.eks.describe_nodegroup(**self.key)["nodegroup"]

    @property
    def status(self) -> str:
        return str(self.describe()["status"])


@pytest.fixture
def group(emulator: Emulator) -> Group:
    return Group(emulator)


def test_an_empty_group_is_creating_for_two_and_a_half_minutes_then_active(group: Group) -> None:
    created = group.create(labels={"a": "b"}, tags={"owner": "me"})
    assert created["status"] == "CREATING"
    assert created["resources"] == {}
    assert group.emulator.leftovers()["autoScalingGroups"] == []
    group.emulator.advance(149)
    assert group.status == "CREATING"
    group.emulator.advance(1)
    found = group.describe()
    assert found["status"] == "ACTIVE"
    assert found["nodegroupArn"].startswith("arn:aws:eks:us-east-1:111122223333:nodegroup/moerl-local/g/")
    assert found["resources"]["autoScalingGroups"][0]["name"].startswith("eks-g-")
    assert (found["labels"], found["tags"], found["taints"]) == ({"a": "b"}, {"owner": "me"}, [])
    assert (found["amiType"], found["version"], found["capacityType"]) == (
        "AL2023_x86_64_STANDARD",
        "1.34",
        "ON_DEMAND",
    )
    assert found["health"]["issues"] == []


def test_a_group_with_nodes_is_active_only_when_they_have_joined(group: Group) -> None:
    group.create(size=2)
    group.emulator.advance(300)
    assert group.status == "CREATING"
    group.emulator.advance(100)
    assert group.status == "ACTIVE"
    assert len(group.emulator.leftovers()["instances"]) == 2


def test_the_stock_waiters_understand_it(group: Group) -> None:
    group.create()
    group.emulator.advance(150)
    group.eks.get_waiter("nodegroup_active").wait(**group.key, WaiterConfig={"Delay": 0, "MaxAttempts": 1})
    group.eks.delete_nodegroup(**group.key)
    group.emulator.advance(600)
    group.eks.get_waiter("nodegroup_deleted").wait(**group.key, WaiterConfig={"Delay": 0, "MaxAttempts": 1})


def test_creation_is_idempotent_by_token_and_only_for_the_same_request(group: Group) -> None:
    first = group.create(token="t1")
    assert group.create(token="t1")["nodegroupArn"] == first["nodegroupArn"]
    with pytest.raises(ClientError, match="NodeGroup already exists with name g and cluster name moerl-local") as error:
        group.create(token="t2")
    assert refusal(error) == ("ResourceInUseException", 409)
    with pytest.raises(ClientError) as error:
        group.create(token="t1", labels={"other": "request"})
    assert refusal(error) == ("ResourceInUseException", 409)


def test_a_config_update_passes_through_updating(group: Group) -> None:
    group.create()
    group.emulator.advance(150)
    update = group.eks.update_nodegroup_config(
        **group.key,
        labels={"addOrUpdateLabels": {"x": "1"}},
        taints={"addOrUpdateTaints": [{"key": "k", "value": "v", "effect": "NO_SCHEDULE"}]},
        scalingConfig={"maxSize": 20, "desiredSize": 3},
    )["update"]
    assert (update["status"], update["type"]) == ("InProgress", "ConfigUpdate")
    assert {"type": "MaxSize", "value": "20"} in update["params"]
    assert (group.status, group.describe()["labels"]) == ("UPDATING", {})
    with pytest.raises(
        ClientError, match="Nodegroup cannot be updated as it is currently not in Active State"
    ) as error:
        group.eks.update_nodegroup_config(**group.key, scalingConfig={"desiredSize": 1})
    assert refusal(error) == ("ResourceInUseException", 409)
    group.emulator.advance(30)
    found = group.describe()
    assert (found["status"], found["labels"]) == ("ACTIVE", {"x": "1"})
    assert found["taints"] == [{"key": "k", "value": "v", "effect": "NO_SCHEDULE"}]
    assert found["scalingConfig"] == {"minSize": 0, "maxSize": 20, "desiredSize": 3}
    done = group.eks.describe_update(name=CLUSTER, nodegroupName="g", updateId=update["id"])["update"]
    assert (done["status"], done["errors"]) == ("Successful", [])
    assert group.eks.list_updates(name=CLUSTER, nodegroupName="g")["updateIds"] == [update["id"]]
    group.emulator.advance(60)
    asg = found["resources"]["autoScalingGroups"][0]["name"]
    scaled = group.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[asg])["AutoScalingGroups"][0]
    assert (scaled["MaxSize"], scaled["DesiredCapacity"], len(scaled["Instances"])) == (20, 3, 3)


def test_an_update_is_idempotent_by_token_and_removes_too(group: Group) -> None:
    group.create(labels={"a": "1", "b": "2"}, taints=[{"key": "k", "effect": "NO_EXECUTE"}])
    group.emulator.advance(150)
    change = {
        "labels": {"removeLabels": ["a"]},
        "taints": {"removeTaints": [{"key": "k", "effect": "NO_EXECUTE"}]},
        "clientRequestToken": "u1",
    }
    first = group.eks.update_nodegroup_config(**group.key, **change)["update"]
    assert group.eks.update_nodegroup_config(**group.key, **change)["update"]["id"] == first["id"]
    group.emulator.advance(30)
    assert (group.describe()["labels"], group.describe()["taints"]) == ({"b": "2"}, [])


def test_a_failed_update_says_so_and_changes_nothing(group: Group) -> None:
    group.create()
    group.emulator.advance(150)
    group.emulator.fault("update-failed", nodegroup="g", times=1, code="OperationNotPermitted", message="no")
    update = group.eks.update_nodegroup_config(**group.key, labels={"addOrUpdateLabels": {"x": "1"}})["update"]
    group.emulator.advance(30)
    found = group.eks.describe_update(name=CLUSTER, nodegroupName="g", updateId=update["id"])["update"]
    assert found["status"] == "Failed"
    assert found["errors"] == [{"errorCode": "OperationNotPermitted", "errorMessage": "no", "resourceIds": ["g"]}]
    assert (group.status, group.describe()["labels"]) == ("ACTIVE", {})


@pytest.mark.parametrize("after", [0, 60, 150, 500])
def test_deletion_at_any_moment_ends_in_nothing(group: Group, after: int) -> None:
    group.create(size=2)
    group.emulator.advance(after)
    assert group.eks.delete_nodegroup(**group.key)["nodegroup"]["status"] == "DELETING"
    assert group.eks.delete_nodegroup(**group.key)["nodegroup"]["status"] == "DELETING"
    with pytest.raises(ClientError) as error:
        group.create(token="again")
    assert refusal(error) == ("ResourceInUseException", 409)
    group.emulator.advance(299)
    assert group.status == "DELETING"
    group.emulator.advance(200)
    with pytest.raises(ClientError, match="No node group found for name: g") as error:
        group.describe()
    assert refusal(error) == ("ResourceNotFoundException", 404)
    assert not any(group.emulator.leftovers().values())
    group.create(token="again")


def test_a_failed_deletion_can_be_tried_again(group: Group) -> None:
    group.create()
    group.emulator.advance(150)
    group.emulator.fault("delete-failed", nodegroup="g", times=1)
    group.eks.delete_nodegroup(**group.key)
    group.emulator.advance(300)
    found = group.describe()
    assert found["status"] == "DELETE_FAILED"
    assert found["health"]["issues"][0]["code"] == "Ec2SecurityGroupDeletionFailure"
    group.eks.delete_nodegroup(**group.key)
    group.emulator.advance(300)
    assert not any(group.emulator.leftovers().values())


def test_an_account_may_refuse_to_delete_a_busy_group(group: Group) -> None:
    group.emulator.fault("busy-refuses-delete")
    group.create()
    with pytest.raises(ClientError, match="currently in CREATING state") as error:
        group.eks.delete_nodegroup(**group.key)
    assert refusal(error) == ("ResourceInUseException", 409)
    group.emulator.advance(150)
    group.eks.delete_nodegroup(**group.key)


def test_nodes_that_never_join_fail_the_creation(group: Group) -> None:
    group.emulator.fault("join-failure", nodegroup="g")
    group.create(size=1)
    group.emulator.advance(1799)
    assert group.status == "CREATING"
    group.emulator.advance(1)
    found = group.describe()
    assert found["status"] == "CREATE_FAILED"
    issue = found["health"]["issues"][0]
    assert (issue["code"], issue["message"]) == (
        "NodeCreationFailure",
        "Instances failed to join the kubernetes cluster",
    )
    assert issue["resourceIds"] == group.emulator.leftovers()["instances"]
    group.eks.delete_nodegroup(**group.key)
    group.emulator.advance(600)
    assert not any(group.emulator.leftovers().values())


def test_eks_sees_a_size_set_at_the_auto_scaling_group_late(group: Group) -> None:
    asg = group.emulator.create_group("g")
    group.asg.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=4)
    group.emulator.advance(179)
    assert group.describe()["scalingConfig"]["desiredSize"] == 0
    group.emulator.advance(1)
    assert group.describe()["scalingConfig"]["desiredSize"] == 4


def test_thirty_groups_a_cluster_and_no_more(group: Group) -> None:
    for index in range(30):
        Group(group.emulator, f"g{index}").create()
    with pytest.raises(ClientError) as error:
        group.create()
    assert refusal(error) == ("ResourceLimitExceededException", 400)
    names: list[str] = []
    for page in group.eks.get_paginator("list_nodegroups").paginate(
        clusterName=CLUSTER, PaginationConfig={"PageSize": 7}
    ):
        assert len(page["nodegroups"]) <= 7
        names += page["nodegroups"]
    assert sorted(names) == sorted(f"g{index}" for index in range(30))


def test_an_injected_quota_counts_instead(group: Group) -> None:
    group.emulator.fault("quota", name="nodegroups", value=1)
    group.create()
    with pytest.raises(ClientError) as error:
        Group(group.emulator, "other").create()
    assert refusal(error)[0] == "ResourceLimitExceededException"


def test_tags_of_a_group(group: Group) -> None:
    arn = group.create(tags={"a": "1"})["nodegroupArn"]
    group.eks.tag_resource(resourceArn=arn, tags={"b": "2"})
    assert group.eks.list_tags_for_resource(resourceArn=arn)["tags"] == {"a": "1", "b": "2"}
    group.eks.untag_resource(resourceArn=arn, tagKeys=["a"])
    assert group.describe()["tags"] == {"b": "2"}
    with pytest.raises(ClientError) as error:
        group.eks.tag_resource(resourceArn=arn, tags={str(index): "" for index in range(50)})
    assert refusal(error) == ("BadRequestException", 400)
    with pytest.raises(ClientError) as error:
        group.eks.list_tags_for_resource(resourceArn=arn + "x")
    assert refusal(error) == ("NotFoundException", 404)


def test_another_cluster_is_not_found(group: Group) -> None:
    for call in (
        lambda: group.eks.describe_cluster(name="other"),
        lambda: group.eks.list_nodegroups(clusterName="other"),
        lambda: group.create(clusterName="other"),
    ):
        with pytest.raises(ClientError, match="No cluster found for name: other") as error:
            call()
        assert refusal(error) == ("ResourceNotFoundException", 404)
    assert group.eks.list_clusters()["clusters"] == [CLUSTER]
    assert group.eks.describe_cluster(name=CLUSTER)["cluster"]["status"] == "ACTIVE"


def test_tags_of_the_template_reach_instances_and_those_of_the_group_do_not(group: Group) -> None:
    ec2 = group.emulator.client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName="tpl",
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": [{"Key": "of-template", "Value": "1"}]}],
        LaunchTemplateData={
            "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "of-instance", "Value": "1"}]},
                {"ResourceType": "volume", "Tags": [{"Key": "of-volume", "Value": "1"}]},
            ]
        },
    )
    group.create(size=1, subnets=[SUBNET_C], tags={"of-group": "1"}, launchTemplate={"name": "tpl"})
    group.emulator.advance(400)
    instance = ec2.describe_instances()["Reservations"][0]["Instances"][0]
    keys = {tag["Key"] for tag in instance["Tags"]}
    assert "of-instance" in keys
    assert not keys & {"of-group", "of-volume", "of-template"}
    assert {"eks:nodegroup-name", "eks:cluster-name", "aws:autoscaling:groupName"} <= keys
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1c"
