"""The Node objects of instances, and what the emulator knows of instance types."""

from __future__ import annotations

from typing import Any

import pytest

from moerl_local.aws import facts, node_objects
from moerl_local.aws.world import Instance, NodeGroup
from support.emulator import efa_interfaces


def group(**request: Any) -> NodeGroup:
    base = {"capacityType": "ON_DEMAND", "scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0}}
    return NodeGroup(name="g", cluster="c", request=base | request, created_at=0, modified_at=0)


def instance(kind: str = "p5en.48xlarge") -> Instance:
    return Instance(
        id="i-0123456789abcdef0",
        asg="a",
        nodegroup="g",
        cluster="c",
        type=kind,
        zone="us-east-1a",
        subnet="subnet-0000000000000000a",
        address="10.1.2.3",
        node_name="ip-10-1-2-3.ec2.internal",
        capacity_type="ON_DEMAND",
        image="ami-1",
        template_id="lt-1",
        template_version="1",
        launched_at=0,
    )


def test_a_p5en_with_all_its_cards() -> None:
    capacity, allocatable = facts.node_resources("p5en.48xlarge", {"NetworkInterfaces": efa_interfaces(16)})
    assert capacity == {
        "cpu": "192",
        "memory": "2097152Mi",
        "pods": "100",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "16",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "10256Mi",
        "ephemeral-storage": "500Gi",
    }
    assert allocatable["cpu"] == "191450m"
    assert (allocatable["nvidia.com/gpu"], allocatable["vpc.amazonaws.com/efa"]) == ("8", "16")
    assert int(allocatable["memory"].removesuffix("Mi")) == 2097152 - 255 - 1100 - 100 - 10256


@pytest.mark.parametrize(
    ("kind", "template", "gpus", "efas", "cpus"),
    [
        ("p5en.48xlarge", {}, None, None, "192"),
        ("p5.48xlarge", {"NetworkInterfaces": efa_interfaces(32)}, "8", "32", "192"),
        ("p6-b200.48xlarge", {"NetworkInterfaces": efa_interfaces(8)}, "8", "8", "192"),
        ("c7i.4xlarge", {}, None, None, "16"),
        ("r7i.8xlarge", {}, None, None, "32"),
        ("t3.medium", {}, None, None, "2"),
    ],
)
def test_devices_come_from_type_and_template(
    kind: str, template: dict[str, Any], gpus: str | None, efas: str | None, cpus: str
) -> None:
    capacity, allocatable = facts.node_resources(kind, template)
    assert capacity["cpu"] == cpus
    assert capacity.get("vpc.amazonaws.com/efa") == efas
    if gpus:
        assert capacity["nvidia.com/gpu"] == gpus
    assert int(allocatable["cpu"].removesuffix("m")) < int(cpus) * 1000


def test_a_node_carries_its_group_and_its_place() -> None:
    owner = group(
        labels={"role.moerl.dev/trainer": "g"},
        taints=[
            {"key": "moerl.dev/dedicated", "value": "j", "effect": "NO_SCHEDULE"},
            {"key": "k", "effect": "NO_EXECUTE"},
        ],
        launchTemplate={"id": "lt-9", "name": "x", "version": "3"},
    )
    made = node_objects.node(instance(), owner)
    labels = made["metadata"]["labels"]
    assert labels["role.moerl.dev/trainer"] == "g"
    assert labels["eks.amazonaws.com/nodegroup"] == "g"
    assert labels["eks.amazonaws.com/sourceLaunchTemplateVersion"] == "3"
    assert labels["topology.kubernetes.io/zone"] == "us-east-1a"
    assert labels["node.kubernetes.io/instance-type"] == "p5en.48xlarge"
    assert made["spec"] == {
        "providerID": "aws:///us-east-1a/i-0123456789abcdef0",
        "taints": [
            {"key": "moerl.dev/dedicated", "value": "j", "effect": "NoSchedule"},
            {"key": "k", "effect": "NoExecute"},
        ],
    }


def test_a_changed_group_changes_only_what_it_put_there() -> None:
    taint = {"key": "k", "value": "1", "effect": "NO_SCHEDULE"}
    made = node_objects.node(instance(), group(labels={"a": "1", "b": "1"}, taints=[taint]))
    made["metadata"]["labels"]["mine"] = "1"
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    made["spec"]["taints"].append(cordon)
    assert node_objects.regroup(made, group(labels={"a": "1", "b": "1"}, taints=[taint])) is None
    patch = node_objects.regroup(made, group(labels={"b": "2"}, taints=[taint | {"value": "2"}]))
    assert patch is not None
    assert patch["metadata"]["labels"] == {"a": None, "b": "2"}
    assert patch["spec"]["taints"] == [cordon, {"key": "k", "value": "2", "effect": "NoSchedule"}]


def test_taints_that_a_person_removed_stay_away() -> None:
    owner = group(taints=[{"key": "k", "effect": "NO_SCHEDULE"}])
    made = node_objects.node(instance(), owner)
    made["spec"]["taints"] = []
    assert node_objects.regroup(made, owner) is None


@pytest.mark.parametrize(
    ("metadata", "phase", "evicted", "waited"),
    [
        ({}, "Running", True, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "Running", False, True),
        ({}, "Succeeded", False, False),
        ({"ownerReferences": [{"kind": "DaemonSet"}]}, "Running", False, False),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "Running", False, False),
    ],
)
def test_what_a_drain_touches(metadata: dict[str, Any], phase: str, evicted: bool, waited: bool) -> None:
    pod = {"metadata": metadata, "status": {"phase": phase}}
    assert (node_objects.evictable(pod), node_objects.holds_drain(pod)) == (evicted, waited)
