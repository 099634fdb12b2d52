"""Emulated instances as nodes of a real API server: they join, carry their group, are drained and go."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_local.cluster.processes import Processes
from moerl_operator.kube.api import Kinds, KubeApi, Obj
from support.emulator import CLUSTER, Emulator, efa_interfaces
from support.waiting import until

pytestmark = pytest.mark.e2e
DEDICATED = {"key": "moerl.dev/dedicated", "value": "job", "effect": "NO_SCHEDULE"}
TOLERATION = {"key": "moerl.dev/dedicated", "operator": "Exists"}


class Fleet:
    """One node group of a test's own."""

    def __init__(self, emulator: Emulator, kube: KubeApi, name: str) -> None:
        self.emulator = emulator
        self.kube = kube
        self.name = name
        self.asg = ""

    def create(self, *, types: tuple[str, ...] = ("p5en.48xlarge",), efa: int = 16, **more: Any) -> None:
        ec2 = self.emulator.client("ec2")
        data = {"NetworkInterfaces": efa_interfaces(efa)} if efa else {"EbsOptimized": True}
        ec2.create_launch_template(LaunchTemplateName=self.name, LaunchTemplateData=data)
        labels = {"role.moerl.dev/trainer": self.name}
        template = {"name": self.name}
        request = {"labels": labels, "taints": [DEDICATED], "launchTemplate": template} | more
        self.asg = self.emulator.create_group(self.name, types=types, **request)

    def desire(self, size: int) -> None:
        scaling = self.emulator.client("autoscaling")
        scaling.set_desired_capacity(AutoScalingGroupName=self.asg, DesiredCapacity=size)

    async def nodes(self) -> list[Obj]:
        return await self.kube.list(Kinds.NODE, label_selector=f"eks.amazonaws.com/nodegroup={self.name}")

    async def ready(self, count: int) -> list[Obj]:
        """The nodes, once that many are Ready."""

        async def look() -> list[Obj]:
            nodes = await self.nodes()
            return nodes if len(nodes) == count and all(_ready(node) for node in nodes) else []

        return await until(f"{count} Ready nodes of {self.name}", look)

    async def gone(self) -> None:
        async def look() -> bool:
            return not await self.nodes()

        await until(f"no node of {self.name}", look)

    def delete(self) -> None:
        """Group and template, whatever state they are in."""
        eks, ec2 = self.emulator.client("eks"), self.emulator.client("ec2")
        groups = eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]
        if self.name in groups:
            eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName=self.name)
            self.emulator.advance(1500)
        templates = ec2.describe_launch_templates(Filters=[{"Name": "launch-template-name", "Values": [self.name]}])
        for template in templates["LaunchTemplates"]:
            ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])


def _ready(node: Obj) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


@pytest.fixture
def fleet(cluster: Cluster, kube: KubeApi) -> Iterator[Fleet]:
    assert cluster.aws_endpoint, "the cluster runs without AWS emulator"
    made = Fleet(Emulator(cluster.aws_endpoint), kube, f"moerl-{secrets.token_hex(4)}")
    yield made
    made.delete()


def pod(namespace: str, name: str, fleet: Fleet, **more: Any) -> Obj:
    resources = {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "16",
        "hugepages-2Mi": "5120Mi",
        "memory": "1Ti",
        "cpu": "180",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": {"role.moerl.dev/trainer": fleet.name},
            "tolerations": [TOLERATION],
            "containers": [
                {"name": "main", "image": "none", "resources": {"limits": resources, "requests": resources}},
            ],
            **more,
        },
    }


async def running(kube: KubeApi, namespace: str, name: str) -> Obj:
    async def look() -> Obj | None:
        found = await kube.get(Kinds.POD, namespace, name)
        return found if found and found["status"]["phase"] == "Running" else None

    return await until(f"pod {name} Running", look)


async def test_a_pod_with_gpus_and_efas_runs_on_a_joined_node(fleet: Fleet, kube: KubeApi, namespace: str) -> None:
    fleet.create()
    assert await fleet.nodes() == []
    fleet.desire(4)
    fleet.emulator.advance(320)
    nodes = await fleet.ready(4)
    for node in nodes:
        labels, spec = node["metadata"]["labels"], node["spec"]
        assert labels["role.moerl.dev/trainer"] == fleet.name
        assert labels["topology.kubernetes.io/zone"] == "us-east-1a"
        assert labels["node.kubernetes.io/instance-type"] == "p5en.48xlarge"
        assert spec["providerID"].startswith("aws:///us-east-1a/i-")
        assert {"key": "moerl.dev/dedicated", "value": "job", "effect": "NoSchedule"} in spec["taints"]
        assert node["status"]["allocatable"]["vpc.amazonaws.com/efa"] == "16"
    ec2 = fleet.emulator.client("ec2")
    filters = [{"Name": "tag:eks:nodegroup-name", "Values": [fleet.name]}]
    found = ec2.describe_instances(Filters=filters)["Reservations"]
    names = {instance["PrivateDnsName"] for entry in found for instance in entry["Instances"]}
    assert names == {node["metadata"]["name"] for node in nodes}

    await kube.create(Kinds.POD, pod(namespace, "gang-0", fleet))
    await running(kube, namespace, "gang-0")
    # In its own time, not by a jump: the drain ends the pod before the instance goes.
    fleet.emulator.client("eks").delete_nodegroup(clusterName=CLUSTER, nodegroupName=fleet.name)
    await fleet.gone()

    async def no_pod() -> bool:
        return await kube.get(Kinds.POD, namespace, "gang-0") is None

    await until("the pod is gone", no_pod)
    fleet.delete()
    assert not any(fleet.name in name for left in fleet.emulator.leftovers().values() for name in left)


async def test_without_efa_interfaces_in_the_template_there_is_no_efa(
    fleet: Fleet, kube: KubeApi, namespace: str
) -> None:
    fleet.create(efa=0)
    fleet.desire(1)
    fleet.emulator.advance(320)
    (node,) = await fleet.ready(1)
    assert "vpc.amazonaws.com/efa" not in node["status"]["allocatable"]
    await kube.create(Kinds.POD, pod(namespace, "hopeful", fleet))

    async def refusal() -> str:
        found = await kube.get(Kinds.POD, namespace, "hopeful")
        conditions = (found or {}).get("status", {}).get("conditions", [])
        said = next((entry.get("message", "") for entry in conditions if entry.get("reason") == "Unschedulable"), "")
        # At first the scheduler may still see the taint of a node that has just become Ready.
        return said if "Insufficient" in said else ""

    assert "Insufficient vpc.amazonaws.com/efa" in await until("a pod without a node that has its devices", refusal)


async def test_labels_and_taints_of_an_update_reach_nodes_that_run(fleet: Fleet) -> None:
    fleet.create(types=("c7i.4xlarge",), efa=0, size=2)
    await fleet.ready(2)
    fleet.emulator.client("eks").update_nodegroup_config(
        clusterName=CLUSTER,
        nodegroupName=fleet.name,
        labels={"addOrUpdateLabels": {"extra": "1"}, "removeLabels": ["role.moerl.dev/trainer"]},
        taints={"removeTaints": [DEDICATED]},
    )
    fleet.emulator.advance(40)

    async def changed() -> bool:
        nodes = await fleet.nodes()
        return all(
            node["metadata"]["labels"].get("extra") == "1"
            and "role.moerl.dev/trainer" not in node["metadata"]["labels"]
            and not any(taint["key"] == "moerl.dev/dedicated" for taint in node["spec"].get("taints", []))
            for node in nodes
        )

    await until("changed nodes", changed)


async def test_a_dead_instance_takes_its_node_and_is_replaced(fleet: Fleet) -> None:
    fleet.create(types=("c7i.4xlarge",), efa=0, size=2)
    nodes = await fleet.ready(2)
    victim = nodes[0]
    fleet.emulator.client("ec2").terminate_instances(InstanceIds=[victim["spec"]["providerID"].rsplit("/", 1)[1]])

    async def lost() -> bool:
        found = await fleet.kube.get(Kinds.NODE, None, victim["metadata"]["name"])
        return found is None or not _ready(found)

    await until("a lost node", lost)
    fleet.emulator.advance(400)
    after = {node["metadata"]["name"] for node in await fleet.ready(2)}
    assert victim["metadata"]["name"] not in after
    assert nodes[1]["metadata"]["name"] in after


async def test_scaling_in_drains_the_chosen_node_first(fleet: Fleet, kube: KubeApi, namespace: str) -> None:
    fleet.create(types=("c7i.4xlarge",), efa=0, size=2)
    nodes = await fleet.ready(2)
    chosen = nodes[0]
    # It takes its time to end, as a trainer that writes a checkpoint does.
    slow = pod(namespace, "slow", fleet, nodeName=chosen["metadata"]["name"], terminationGracePeriodSeconds=3)
    slow["metadata"]["annotations"] = {"fake.moerl.dev/do": "hang"}
    slow["spec"]["containers"][0].pop("resources")
    await kube.create(Kinds.POD, slow)
    await running(kube, namespace, "slow")
    fleet.emulator.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=chosen["spec"]["providerID"].rsplit("/", 1)[1], ShouldDecrementDesiredCapacity=True
    )

    async def cordoned_and_ending() -> bool:
        node = await kube.get(Kinds.NODE, None, chosen["metadata"]["name"])
        found = await kube.get(Kinds.POD, namespace, "slow")
        return bool(node and node["spec"].get("unschedulable") and found and found["metadata"].get("deletionTimestamp"))

    await until("a cordoned node with an ending pod", cordoned_and_ending)

    async def one_left() -> bool:
        return [node["metadata"]["uid"] for node in await fleet.nodes()] == [nodes[1]["metadata"]["uid"]]

    await until("one node", one_left)
    assert await kube.get(Kinds.POD, namespace, "slow") is None


async def test_a_restarted_emulator_leaves_its_nodes_alone(fleet: Fleet, cluster: Cluster, kube: KubeApi) -> None:
    fleet.create(types=("c7i.4xlarge",), efa=0, size=3)
    before = {node["metadata"]["uid"] for node in await fleet.ready(3)}
    for process in Processes(cluster.folder).pids("aws"):
        os.kill(process, signal.SIGKILL)
    options = ["--name", cluster.name, *([] if cluster.node_name else ["--no-node"])]
    up = await asyncio.create_subprocess_exec(Path(sys.executable).with_name("moerl"), "cluster", "up", *options)
    assert await up.wait() == 0
    fleet.emulator.advance(60)
    assert {node["metadata"]["uid"] for node in await fleet.ready(3)} == before
    fleet.delete()
    await fleet.gone()
