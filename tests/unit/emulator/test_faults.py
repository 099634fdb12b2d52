"""Injected faults answer in the words of each service, as often as asked, and change nothing."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from support.emulator import CLUSTER, NODE_ROLE, SUBNET_A, Emulator

ACTIONS = {
    "eks": ("ListNodegroups", {"clusterName": CLUSTER}),
    "autoscaling": ("DescribeAutoScalingGroups", {}),
    "ec2": ("DescribeInstances", {}),
    "sts": ("GetCallerIdentity", {}),
}
METHODS = {
    "eks": "list_nodegroups",
    "autoscaling": "describe_auto_scaling_groups",
    "ec2": "describe_instances",
    "sts": "get_caller_identity",
}


def call(emulator: Emulator, service: str, **client: Any) -> Any:
    return getattr(emulator.client(service, **client), METHODS[service])(**ACTIONS[service][1])


@pytest.mark.parametrize(
    ("kind", "service", "code", "status"),
    [
        ("throttle", "eks", "ThrottlingException", 429),
        ("throttle", "autoscaling", "Throttling", 400),
        ("throttle", "ec2", "RequestLimitExceeded", 503),
        ("access-denied", "eks", "AccessDeniedException", 403),
        ("access-denied", "autoscaling", "AccessDenied", 403),
        ("access-denied", "ec2", "UnauthorizedOperation", 403),
        ("credentials", "eks", "UnrecognizedClientException", 403),
        ("credentials", "autoscaling", "InvalidClientTokenId", 403),
        ("credentials", "sts", "InvalidClientTokenId", 403),
        ("credentials", "ec2", "AuthFailure", 401),
        ("server-error", "eks", "ServerException", 500),
        ("server-error", "ec2", "InternalError", 500),
        ("server-error", "autoscaling", "InternalFailure", 500),
    ],
)
def test_each_service_has_its_own_words(emulator: Emulator, kind: str, service: str, code: str, status: int) -> None:
    emulator.fault(kind, service=service, times=1)
    with pytest.raises(ClientError) as error:
        call(emulator, service)
    response = error.value.response
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert response["Error"]["Message"]
    call(emulator, service)  # once was asked for


def test_a_fault_can_be_narrowed_to_one_action(emulator: Emulator) -> None:
    emulator.fault("throttle", service="eks", action="CreateNodegroup")
    call(emulator, "eks")
    with pytest.raises(ClientError, match="Rate exceeded"):
        emulator.create_group("g")
    emulator.clear_faults()
    emulator.create_group("g")


def test_a_caller_who_may_not_run_instances_gets_no_group_from_a_template(emulator: Emulator) -> None:
    emulator.client("ec2").create_launch_template(LaunchTemplateName="tpl", LaunchTemplateData={"EbsOptimized": True})
    emulator.fault("access-denied", service="ec2", action="RunInstances")
    with pytest.raises(ClientError, match="You are not authorized to launch instances with this launch template"):
        emulator.create_group("g", launchTemplate={"name": "tpl"})


def test_a_patient_client_gets_through_throttling(emulator: Emulator) -> None:
    emulator.fault("throttle", service="eks", times=2)
    call(emulator, "eks", retries=3)
    statuses = [entry["status"] for entry in emulator.calls(service="eks", action="ListNodegroups")]
    assert statuses == [429, 429, 200]


def test_only_the_named_key_is_invalid(emulator: Emulator) -> None:
    emulator.fault("credentials", accessKey="AKIDSTOLEN")
    call(emulator, "eks")
    with pytest.raises(ClientError, match="security token included in the request is invalid"):
        call(emulator, "eks", key="AKIDSTOLEN")


def test_s3_is_throttled_in_its_own_words(emulator: Emulator) -> None:
    emulator.fault("throttle", service="s3", times=1)
    with pytest.raises(ClientError) as error:
        emulator.client("s3").list_buckets()
    assert error.value.response["Error"]["Code"] == "SlowDown"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503


def test_slow_answers(emulator: Emulator) -> None:
    emulator.fault("slow", service="eks", seconds=0.4, times=1)
    started = time.monotonic()
    call(emulator, "eks")
    assert time.monotonic() - started >= 0.4


def test_a_lost_answer_was_done_and_the_same_token_finds_it(emulator: Emulator) -> None:
    emulator.fault("lost-answer", service="eks", action="CreateNodegroup", times=1)
    request = {
        "clusterName": CLUSTER,
        "nodegroupName": "g",
        "subnets": [SUBNET_A],
        "nodeRole": NODE_ROLE,
        "instanceTypes": ["c7i.4xlarge"],
        "clientRequestToken": "t",
    }
    eks = emulator.client("eks")
    with pytest.raises(ConnectionClosedError):
        eks.create_nodegroup(**request)
    assert eks.create_nodegroup(**request)["nodegroup"]["nodegroupName"] == "g"
    assert emulator.leftovers()["nodeGroups"] == [f"{CLUSTER}/g"]


@pytest.mark.parametrize(
    ("service", "code"),
    [("eks", "InvalidSignatureException"), ("ec2", "SignatureDoesNotMatch"), ("autoscaling", "SignatureDoesNotMatch")],
)
def test_another_region_is_refused_as_aws_does(emulator: Emulator, service: str, code: str) -> None:
    with pytest.raises(ClientError, match="Credential should be scoped to a valid region, not 'eu-west-1'") as error:
        call(emulator, service, region="eu-west-1")
    assert error.value.response["Error"]["Code"] == code


def test_a_request_without_signature_is_refused(emulator: Emulator) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{emulator.url}/clusters")
    assert error.value.code == 403
    assert b"Missing Authentication Token" in error.value.read()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "bogus"}, "kinds: insufficient-capacity"),
        ({"kind": "throttle", "times": 0}, "times: Input should be greater than or equal to 1"),
        ({"kind": "throttle", "actoin": "x"}, "actoin: Extra inputs are not permitted"),
        ({}, "kind: Field required"),
    ],
)
def test_a_bad_fault_is_refused_in_one_line(emulator: Emulator, document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        emulator._call("POST", "/_moerl/faults", document)
    assert emulator.state()["faults"] == []


def test_faults_are_listed_and_lifted(emulator: Emulator) -> None:
    first = emulator.fault("throttle", service="eks")
    second = emulator.fault("insufficient-capacity", zone="us-east-1a", available=2)
    assert emulator.state()["faults"] == [
        {"kind": "throttle", "id": first, "service": "eks"},
        {"kind": "insufficient-capacity", "id": second, "zone": "us-east-1a", "available": 2},
    ]
    emulator.clear_faults(first)
    assert [fault["id"] for fault in emulator.state()["faults"]] == [second]
    with pytest.raises(ValueError, match="there is no fault"):
        emulator.clear_faults("nothing")


@pytest.mark.parametrize("seconds", [-1, "10", None, True, 1e12])
def test_the_clock_takes_sensible_numbers_only(emulator: Emulator, seconds: Any) -> None:
    before = emulator.state()["now"]
    with pytest.raises(ValueError, match="advanceSeconds must be a number"):
        emulator._call("POST", "/_moerl/clock", {"advanceSeconds": seconds})
    assert emulator.state()["now"] == before
