"""What EKS refuses, each with its code, and that nothing is left of a refused request."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.emulator import CLUSTER, NODE_ROLE, SECURITY_GROUP, SUBNET_A, SUBNET_B, Emulator, efa_interfaces

GOOD: dict[str, Any] = {
    "clusterName": CLUSTER,
    "nodegroupName": "g",
    "subnets": [SUBNET_A],
    "nodeRole": NODE_ROLE,
    "scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": 0},
    "instanceTypes": ["c7i.4xlarge"],
}
TAINT = {"key": "k", "value": "v", "effect": "NO_SCHEDULE"}


def create(emulator: Emulator, changes: dict[str, Any]) -> dict[str, Any]:
    """CreateNodegroup with a good request and some changes; None leaves a member out."""
    request = {key: value for key, value in (GOOD | changes).items() if value is not None}
    # The client's own checks are switched off: the server must not rely on them.
    return emulator.client("eks", validate=False).create_nodegroup(**request)["nodegroup"]


def code_and_message(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, str]:
    return error.value.response["Error"]["Code"], error.value.response["Error"]["Message"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scalingConfig": {"minSize": 3, "maxSize": 4, "desiredSize": 1}},
            "Minimum capacity 3 can't be greater than desired size 1",
        ),
        (
            {"scalingConfig": {"minSize": 0, "maxSize": 3, "desiredSize": 4}},
            "desired capacity 4 can't be greater than max size 3",
        ),
        (
            {"scalingConfig": {"minSize": 5, "maxSize": 3, "desiredSize": 4}},
            "Minimum capacity 5 can't be greater than max size 3",
        ),
        ({"scalingConfig": {"minSize": -1, "maxSize": 3, "desiredSize": 0}}, "greater than or equal to 0"),
        ({"scalingConfig": {"minSize": 0, "maxSize": 0, "desiredSize": 0}}, "greater than or equal to 1"),
        ({"instanceTypes": ["p9.bogus"]}, "The following supplied instance types do not exist: [p9.bogus]"),
        ({"instanceTypes": ["c7i.4xlarge"] * 21}, "At most 20 instance types"),
        ({"instanceTypes": ["c7i.4xlarge", "c7g.4xlarge"]}, "different processor architectures"),
        ({"amiType": "AL2023_ARM_64_STANDARD"}, "[c7i.4xlarge] is not a valid instance type for requested amiType"),
        ({"amiType": "BOGUS"}, "Member must satisfy enum value set"),
        ({"amiType": "CUSTOM"}, "Launch template details can't be null for Custom ami type node group"),
        ({"capacityType": "FREE"}, "Member must satisfy enum value set"),
        ({"capacityType": "CAPACITY_BLOCK"}, "Launch template details can't be null for a CAPACITY_BLOCK"),
        ({"subnets": []}, "Subnets must not be empty"),
        ({"subnets": ["subnet-1"]}, "The subnet ID 'subnet-1' does not exist"),
        ({"subnets": None}, "Value null at 'subnets' failed to satisfy constraint: Member must not be null"),
        ({"nodeRole": "arn:aws:iam::111122223333:role/other"}, "The role with name other cannot be found"),
        ({"nodegroupName": "a" * 64}, "at most 63 characters"),
        ({"nodegroupName": "-a"}, "must begin with a letter or digit"),
        ({"labels": {"kubernetes.io/x": "1"}}, "Label cannot contain reserved prefixes"),
        ({"labels": {"a.k8s.io/x": "1"}}, "Label cannot contain reserved prefixes"),
        ({"labels": {"eks.amazonaws.com/x": "1"}}, "Label cannot contain reserved prefixes"),
        ({"labels": {"x": "not valid"}}, "not a valid Kubernetes label value"),
        ({"labels": {"x": "a" * 64}}, "less than or equal to 63"),
        ({"labels": {"x": ""}}, "greater than or equal to 1"),
        ({"labels": {"-x": "1"}}, "not a valid Kubernetes label key"),
        ({"taints": [TAINT | {"effect": "NoSchedule"}]}, "Member must satisfy enum value set"),
        ({"taints": [TAINT, TAINT]}, "Duplicate taint k:NO_SCHEDULE"),
        ({"taints": [TAINT | {"key": f"k{index}"} for index in range(51)]}, "At most 50 taints"),
        ({"taints": [TAINT | {"value": "v" * 64}]}, "less than or equal to 63"),
        ({"tags": {str(index): "" for index in range(51)}}, "less than or equal to 50"),
        ({"updateConfig": {"maxUnavailable": 1, "maxUnavailablePercentage": 5}}, "Only one of"),
        ({"updateConfig": {"maxUnavailable": 0}}, "greater than or equal to 1"),
        ({"scalingConfig": {"minSize": "two"}}, "expected integer"),
    ],
)
def test_a_bad_request_is_an_invalid_parameter(emulator: Emulator, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError) as error:
        create(emulator, changes)
    code, text = code_and_message(error)
    assert code == "InvalidParameterException"
    assert message in text
    assert not any(emulator.leftovers().values())


def test_more_nodes_than_the_quota_are_refused(emulator: Emulator) -> None:
    with pytest.raises(ClientError) as error:
        create(emulator, {"scalingConfig": {"minSize": 0, "maxSize": 451, "desiredSize": 0}})
    assert code_and_message(error)[0] == "ResourceLimitExceededException"


def user_data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def nic(**more: Any) -> dict[str, Any]:
    return {"DeviceIndex": 0, "Groups": [SECURITY_GROUP], **more}


EFA = {"NetworkInterfaces": efa_interfaces(16)}
BLOCK = {
    "InstanceType": "p5en.48xlarge",
    "InstanceMarketOptions": {"MarketType": "capacity-block"},
    "CapacityReservationSpecification": {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
    },
}
P5EN = {"instanceTypes": ["p5en.48xlarge"]}


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        ({"KeyName": "k"}, {"diskSize": 20}, "Disk size must be specified within the launch template"),
        ({"KeyName": "k"}, {"remoteAccess": {"ec2SshKey": "k"}}, "Remote access configuration cannot be specified"),
        ({"KeyName": "k"}, {"instanceTypes": None}, "Instance types must be given either"),
        ({"InstanceType": "c7i.4xlarge"}, {}, "Instance types cannot be given both"),
        (
            {"ImageId": "ami-0123456789abcdef0"},
            {"amiType": "AL2023_x86_64_STANDARD"},
            "cannot specify an AMI Type other than CUSTOM",
        ),
        ({"ImageId": "ami-0123456789abcdef0"}, {"releaseVersion": "1"}, "cannot specify the field releaseVersion"),
        ({"ImageId": "ami-0123456789abcdef0"}, {"version": "1.34"}, "cannot specify the field version"),
        ({"KeyName": "k"}, {"amiType": "CUSTOM"}, "must specify an image id in your launch template"),
        (
            {"InstanceMarketOptions": {"MarketType": "spot"}},
            {"capacityType": "ON_DEMAND"},
            "market type spot does not go with",
        ),
        ({"KeyName": "k"}, {"capacityType": "CAPACITY_BLOCK"}, "needs market type capacity-block"),
        (
            BLOCK | {"CapacityReservationSpecification": {}},
            {"capacityType": "CAPACITY_BLOCK", "instanceTypes": None},
            "CapacityReservationTarget",
        ),
        (
            BLOCK,
            {"capacityType": "CAPACITY_BLOCK", "instanceTypes": None, "subnets": [SUBNET_A, SUBNET_B]},
            "takes one subnet",
        ),
        ({"IamInstanceProfile": {"Name": "x"}}, {}, "should not specify an instance profile"),
        ({"NetworkInterfaces": [nic(SubnetId=SUBNET_A)]}, {}, "should not specify subnets"),
        (
            {"InstanceInitiatedShutdownBehavior": "terminate"},
            {},
            "should not specify InstanceInitiatedShutdownBehavior",
        ),
        ({"UserData": user_data("#!/bin/bash\n")}, {}, "User data was not in the MIME multipart format"),
        (
            EFA | {"SecurityGroupIds": [SECURITY_GROUP]},
            P5EN,
            "Network interfaces and an instance-level security groups",
        ),
        (
            {"SecurityGroupIds": ["sg-0000000000000beef"]},
            {},
            "The security group 'sg-0000000000000beef' does not exist",
        ),
        (EFA, {}, "EFA interfaces are not supported on c7i.4xlarge"),
        (
            EFA,
            {"instanceTypes": ["p5.48xlarge", "p4d.24xlarge"]},
            "Network card index 4 is out of range for p4d.24xlarge",
        ),
        ({"NetworkInterfaces": efa_interfaces(17)}, P5EN, "Network card index 16 is out of range for p5en.48xlarge"),
        ({"NetworkInterfaces": [nic(InterfaceType="efa")]}, {}, "EFA interfaces are not supported on c7i.4xlarge"),
        ({"NetworkInterfaces": [nic(InterfaceType="efa-only")]}, P5EN, "cannot be the primary network interface"),
        ({"NetworkInterfaces": [nic(DeviceIndex=1)]}, {}, "There is no primary network interface"),
        ({"NetworkInterfaces": [nic(), nic()]}, {}, "two interfaces with device index 0"),
        ({"NetworkInterfaces": [nic(), nic(DeviceIndex=9)]}, {}, "exceeds the 8 interfaces"),
        (
            {"NetworkInterfaces": [nic(AssociatePublicIpAddress=True), nic(DeviceIndex=1)]},
            {},
            "cannot be specified when launching with multiple",
        ),
        (
            {"NetworkInterfaces": [nic(), nic(NetworkCardIndex=1, InterfaceType="efa-only", Ipv4PrefixCount=1)]},
            P5EN,
            "has no IP addresses",
        ),
        (
            {"NetworkInterfaces": efa_interfaces(16)},
            {"instanceTypes": ["p6-b300.48xlarge"]},
            "does not support interface type efa-only",
        ),
        ({"Placement": {"GroupName": "pg"}}, {}, "The Placement Group 'pg' is unknown"),
    ],
)
def test_what_a_launch_template_may_not_say(
    emulator: Emulator, data: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    emulator.client("ec2").create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData=data)
    with pytest.raises(ClientError) as error:
        create(emulator, {"launchTemplate": {"name": "tpl"}} | changes)
    code, text = code_and_message(error)
    assert code in ("InvalidParameterException", "InvalidRequestException")
    assert message in text
    assert emulator.leftovers()["nodeGroups"] == []


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"name": "other"}, "Ec2LaunchTemplateNotFound"),
        ({"id": "lt-0123456789abcdef0"}, "Ec2LaunchTemplateNotFound"),
        ({"name": "tpl", "version": "2"}, "Ec2LaunchTemplateVersionMismatch"),
        ({"name": "tpl", "id": "lt-0123456789abcdef0"}, "either the launch template ID or the launch template name"),
        ({"version": "1"}, "either the launch template ID or the launch template name"),
    ],
)
def test_a_template_that_is_not_there(emulator: Emulator, reference: dict[str, str], message: str) -> None:
    emulator.client("ec2").create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData={"KeyName": "k"})
    with pytest.raises(ClientError, match=message):
        create(emulator, {"launchTemplate": reference})


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (EFA, P5EN),
        (EFA, P5EN | {"capacityType": "SPOT"}),
        (EFA | BLOCK, {"capacityType": "CAPACITY_BLOCK", "instanceTypes": None}),
        ({"UserData": user_data("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n--x--\n")}, {}),
        ({"SecurityGroupIds": [SECURITY_GROUP]}, {"instanceTypes": ["local"]}),
        ({"InstanceType": "local"}, {"instanceTypes": None}),
        (
            {"NetworkInterfaces": efa_interfaces(17)[:1] + efa_interfaces(17)[2:]},
            {"instanceTypes": ["p6-b300.48xlarge"]},
        ),
    ],
)
def test_good_templates_are_taken(emulator: Emulator, data: dict[str, Any], changes: dict[str, Any]) -> None:
    made = emulator.client("ec2").create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData=data)
    group = create(emulator, {"launchTemplate": {"name": "tpl"}} | changes)
    assert group["launchTemplate"] == {
        "id": made["LaunchTemplate"]["LaunchTemplateId"],
        "name": "tpl",
        "version": "1",
    }


def test_an_update_is_checked_like_a_creation(emulator: Emulator) -> None:
    emulator.create_group("g", maximum=4)
    eks = emulator.client("eks")
    for change, message in (
        ({}, "At least one of"),
        ({"scalingConfig": {"desiredSize": 5}}, "can't be greater than max size 4"),
        ({"labels": {"addOrUpdateLabels": {"kubernetes.io/x": "1"}}}, "reserved prefixes"),
        ({"labels": {"addOrUpdateLabels": {"x": "1"}, "removeLabels": ["x"]}}, "both updated and removed"),
        ({"updateConfig": {"maxUnavailable": 101}}, "at most 100"),
    ):
        with pytest.raises(ClientError, match=message) as error:
            eks.update_nodegroup_config(clusterName=CLUSTER, nodegroupName="g", **change)
        assert code_and_message(error)[0] == "InvalidParameterException"
    assert eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName="g")["nodegroup"]["status"] == "ACTIVE"
