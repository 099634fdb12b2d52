"""Launch templates, instances, subnets, types and tags."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from support.emulator import SECURITY_GROUP, SUBNET_A, SUBNET_B, Emulator, efa_interfaces


def refused(call: Any, **params: Any) -> tuple[str, str]:
    """(code, message) with which a call is refused."""
    with pytest.raises(ClientError) as error:
        call(**params)
    return error.value.response["Error"]["Code"], error.value.response["Error"]["Message"]


def test_a_template_comes_back_as_it_was_sent(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    data = {
        "NetworkInterfaces": efa_interfaces(16),
        "InstanceType": "p5en.48xlarge",
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
        },
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 200, "VolumeType": "gp3"}}],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}],
    }
    made = ec2.create_launch_template(
        LaunchTemplateName="tpl",
        LaunchTemplateData=data,
        VersionDescription="first",
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": [{"Key": "owner", "Value": "me"}]}],
    )
    assert "Warning" not in made
    version = ec2.describe_launch_template_versions(LaunchTemplateName="tpl")["LaunchTemplateVersions"][0]
    assert version["LaunchTemplateData"] == data
    assert (version["VersionNumber"], version["DefaultVersion"], version["VersionDescription"]) == (1, True, "first")
    by_tag = ec2.describe_launch_templates(Filters=[{"Name": "tag:owner", "Values": ["me"]}])["LaunchTemplates"]
    assert [template["LaunchTemplateName"] for template in by_tag] == ["tpl"]


def test_versions_and_the_default(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    ec2.create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData={"KeyName": "a", "EbsOptimized": True})
    second = ec2.create_launch_template_version(
        LaunchTemplateName="tpl", SourceVersion="1", LaunchTemplateData={"KeyName": "b"}
    )["LaunchTemplateVersion"]
    assert second["LaunchTemplateData"] == {"KeyName": "b", "EbsOptimized": True}
    assert (second["VersionNumber"], second["DefaultVersion"]) == (2, False)
    assert (
        ec2.modify_launch_template(LaunchTemplateName="tpl", DefaultVersion="2")["LaunchTemplate"][
            "DefaultVersionNumber"
        ]
        == 2
    )
    found = ec2.describe_launch_template_versions(LaunchTemplateName="tpl", Versions=["$Default", "$Latest", "1"])
    assert [version["VersionNumber"] for version in found["LaunchTemplateVersions"]] == [2, 2, 1]
    ec2.delete_launch_template(LaunchTemplateName="tpl")
    assert not any(emulator.leftovers().values())


def test_a_client_token_makes_one_template(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    request = {"LaunchTemplateName": "tpl", "LaunchTemplateData": {"KeyName": "a"}, "ClientToken": "t"}
    first = ec2.create_launch_template(**request)["LaunchTemplate"]["LaunchTemplateId"]
    assert ec2.create_launch_template(**request)["LaunchTemplate"]["LaunchTemplateId"] == first
    other = request | {"LaunchTemplateData": {"KeyName": "b"}}
    assert refused(ec2.create_launch_template, **other)[0] == "IdempotentParameterMismatch"
    again = {key: value for key, value in request.items() if key != "ClientToken"}
    assert refused(ec2.create_launch_template, **again) == (
        "InvalidLaunchTemplateName.AlreadyExistsException",
        "Launch template name already in use: tpl",
    )


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "bogus"}]}, "InvalidParameterValue"),
        ({"InstanceMarketOptions": {"MarketType": "bogus"}}, "InvalidParameterValue"),
        ({"InstanceType": "p9.bogus"}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "launch-template", "Tags": []}]}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:x"}]}]}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "instance"}, {"ResourceType": "instance"}]}, "InvalidParameterValue"),
        ({"UserData": "not base64!"}, "InvalidUserData.Malformed"),
        ({"UserData": "QUJD" * 5500}, "InvalidUserData.Malformed"),
        ({"MetadataOptions": {"HttpTokens": "maybe"}}, "InvalidParameterValue"),
    ],
)
def test_values_that_no_launch_could_have_are_refused(emulator: Emulator, data: dict[str, Any], code: str) -> None:
    ec2 = emulator.client("ec2")
    assert refused(ec2.create_launch_template, LaunchTemplateName="tpl", LaunchTemplateData=data)[0] == code
    assert emulator.leftovers()["launchTemplates"] == []


def test_what_would_not_launch_is_only_a_warning(emulator: Emulator) -> None:
    answer = emulator.client("ec2").create_launch_template(
        LaunchTemplateName="tpl",
        LaunchTemplateData={"NetworkInterfaces": efa_interfaces(16), "SecurityGroupIds": [SECURITY_GROUP]},
    )
    assert [entry["Code"] for entry in answer["Warning"]["Errors"]] == ["InvalidParameterCombination"]


def test_templates_that_are_not_there(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    delete = ec2.delete_launch_template
    assert refused(delete, LaunchTemplateName="other")[0] == "InvalidLaunchTemplateName.NotFoundException"
    assert refused(delete, LaunchTemplateId="lt-0123456789abcdef0")[0] == "InvalidLaunchTemplateId.NotFoundException"
    assert refused(delete, LaunchTemplateId="bogus")[0] == "InvalidLaunchTemplateId.Malformed"
    assert refused(delete)[0] == "MissingParameter"
    ec2.create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData={"KeyName": "a"})
    versions = ec2.describe_launch_template_versions
    assert refused(versions, LaunchTemplateName="tpl", Versions=["7"])[0] == "InvalidLaunchTemplateId.VersionNotFound"


def test_a_name_of_two_characters_or_with_a_space_is_refused(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2", validate=False)
    for name in ("ab", "a b c"):
        code, _ = refused(ec2.create_launch_template, LaunchTemplateName=name, LaunchTemplateData={"KeyName": "a"})
        assert code in ("InvalidParameterValue", "InvalidLaunchTemplateName.MalformedException")


def test_dry_run_changes_nothing(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    request = {"LaunchTemplateName": "tpl", "LaunchTemplateData": {"KeyName": "a"}, "DryRun": True}
    assert refused(ec2.create_launch_template, **request)[0] == "DryRunOperation"
    assert emulator.leftovers()["launchTemplates"] == []


# --- instances ----------------------------------------------------------------------------------------------------


def test_instances_are_found_by_filter_and_page(emulator: Emulator) -> None:
    emulator.create_group("g", size=5)
    emulator.create_group("h", size=1, types=("r7i.8xlarge",))
    ec2 = emulator.client("ec2")

    def ids(**params: Any) -> set[str]:
        pages = ec2.get_paginator("describe_instances").paginate(**params)
        return {i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]}

    everything = ids(PaginationConfig={"PageSize": 5})
    assert len(everything) == 6
    memory = ids(Filters=[{"Name": "instance-type", "Values": ["r7i.*"]}])
    assert len(memory) == 1
    assert ids(Filters=[{"Name": "tag:eks:nodegroup-name", "Values": ["h"]}]) == memory
    running = {"Name": "instance-state-name", "Values": ["pending", "running"]}
    assert ids(Filters=[running, {"Name": "tag-key", "Values": ["eks:*"]}]) == everything
    assert refused(ec2.describe_instances, Filters=[{"Name": "bogus", "Values": ["x"]}])[0] == "InvalidParameterValue"


def test_an_instance_looks_like_its_node(emulator: Emulator) -> None:
    emulator.create_group("g", size=1, capacityType="SPOT")
    instance = emulator.client("ec2").describe_instances()["Reservations"][0]["Instances"][0]
    address = instance["PrivateIpAddress"]
    assert address.startswith("10.1.")
    assert instance["PrivateDnsName"] == f"ip-{address.replace('.', '-')}.ec2.internal"
    assert (instance["InstanceLifecycle"], instance["SubnetId"]) == ("spot", SUBNET_A)


def test_ending_instances_is_repeatable_and_they_stay_visible_for_an_hour(emulator: Emulator) -> None:
    emulator.create_group("g", size=1)
    ec2 = emulator.client("ec2")
    (instance,) = emulator.leftovers()["instances"]
    first = ec2.terminate_instances(InstanceIds=[instance])["TerminatingInstances"][0]
    assert (first["PreviousState"]["Name"], first["CurrentState"]["Name"]) == ("running", "shutting-down")
    again = ec2.terminate_instances(InstanceIds=[instance])["TerminatingInstances"][0]
    assert again["PreviousState"]["Name"] == "shutting-down"
    emulator.advance(30)
    found = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert (found["State"]["Name"], "PrivateIpAddress" in found) == ("terminated", False)
    emulator.advance(3600)
    assert refused(ec2.describe_instances, InstanceIds=[instance])[0] == "InvalidInstanceID.NotFound"


@pytest.mark.parametrize(
    ("ids", "code"),
    [(["bogus"], "InvalidInstanceID.Malformed"), (["i-0123456789abcdef0"], "InvalidInstanceID.NotFound")],
)
def test_instances_that_are_not_there(emulator: Emulator, ids: list[str], code: str) -> None:
    ec2 = emulator.client("ec2")
    assert refused(ec2.terminate_instances, InstanceIds=ids)[0] == code
    assert refused(ec2.describe_instances, InstanceIds=ids)[0] == code


def test_tags_of_instances_and_templates(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    emulator.create_group("g", size=1)
    (instance,) = emulator.leftovers()["instances"]
    template = ec2.create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData={"KeyName": "a"})
    resources = [instance, template["LaunchTemplate"]["LaunchTemplateId"]]
    ec2.create_tags(Resources=resources, Tags=[{"Key": "moerl.dev/x", "Value": "1"}])
    filters = [{"Name": "key", "Values": ["moerl.dev/x"]}]
    found = ec2.describe_tags(Filters=filters)["Tags"]
    assert {(tag["ResourceId"], tag["ResourceType"]) for tag in found} == set(
        zip(resources, ("instance", "launch-template"), strict=True)
    )
    ec2.delete_tags(Resources=[instance], Tags=[{"Key": "moerl.dev/x", "Value": "other"}])
    assert len(ec2.describe_tags(Filters=filters)["Tags"]) == 2
    ec2.delete_tags(Resources=resources, Tags=[{"Key": "moerl.dev/x"}])
    assert ec2.describe_tags(Filters=filters)["Tags"] == []
    tags = [{"Key": "a", "Value": "1"}]
    assert refused(ec2.create_tags, Resources=["i-0123456789abcdef0"], Tags=tags)[0] == "InvalidInstanceID.NotFound"


# --- facts --------------------------------------------------------------------------------------------------------


def test_types_subnets_and_offerings(emulator: Emulator) -> None:
    ec2 = emulator.client("ec2")
    types = {
        t["InstanceType"]: t for t in ec2.describe_instance_types(InstanceTypes=["p5en.48xlarge"])["InstanceTypes"]
    }
    assert types["p5en.48xlarge"]["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == 16
    local = emulator.client("ec2", validate=False).describe_instance_types(InstanceTypes=["local"])["InstanceTypes"][0]
    assert local["NetworkInfo"]["EfaSupported"] is False
    assert refused(ec2.describe_instance_types, InstanceTypes=["p9.bogus"])[0] in (
        "InvalidInstanceType",
        "InvalidParameterValue",
    )
    subnets = ec2.describe_subnets(SubnetIds=[SUBNET_A, SUBNET_B])["Subnets"]
    assert [subnet["AvailabilityZone"] for subnet in subnets] == ["us-east-1a", "us-east-1b"]
    assert refused(ec2.describe_subnets, SubnetIds=["subnet-1"])[0] == "InvalidSubnetID.NotFound"
    offerings = ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p5en.48xlarge", "local"]}]
    )["InstanceTypeOfferings"]
    assert {(offer["InstanceType"], offer["Location"]) for offer in offerings} == {
        ("p5en.48xlarge", "us-east-1a"),
        ("p5en.48xlarge", "us-east-1c"),
        ("local", "us-east-1a"),
        ("local", "us-east-1b"),
        ("local", "us-east-1c"),
    }
    assert len(ec2.describe_availability_zones()["AvailabilityZones"]) == 3
    assert ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"] == SECURITY_GROUP


def test_what_is_not_emulated_says_so(emulator: Emulator) -> None:
    code, message = refused(emulator.client("ec2").run_instances, MinCount=1, MaxCount=1)
    assert (code, message) == ("UnsupportedOperation", "ec2 RunInstances is not part of this emulator.")
    code, message = refused(emulator.client("fsx").describe_file_systems)
    assert "This emulator has no fsx" in message
