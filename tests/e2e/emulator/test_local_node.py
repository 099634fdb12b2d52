"""Instances of type `local`: the real node stands for all of them, by the labels of their groups."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.kube.api import Kinds, KubeApi
from support.emulator import CLUSTER, Emulator
from support.waiting import stays, until

pytestmark = [pytest.mark.e2e, pytest.mark.node]
TRAINER, POOL = "role.moerl.dev/trainer", "pool.moerl.dev/main"


@pytest.fixture
def groups(node_cluster: Cluster) -> Iterator[tuple[Emulator, str, str]]:
    assert node_cluster.aws_endpoint, "the cluster runs without AWS emulator"
    emulator, tail = Emulator(node_cluster.aws_endpoint), secrets.token_hex(4)
    names = (f"moerl-{tail}-trainer-1", f"moerl-{tail}-main-1")
    yield emulator, *names
    eks = emulator.client("eks")
    for name in set(names) & set(eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]):
        eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName=name)
    emulator.advance(1500)


async def test_one_real_node_stands_for_several_groups(
    groups: tuple[Emulator, str, str], node_cluster: Cluster, kube: KubeApi, namespace: str
) -> None:
    emulator, trainer, pool = groups
    name = node_cluster.node_name or ""
    dedicated = [{"key": "moerl.dev/dedicated", "value": "job", "effect": "NO_SCHEDULE"}]
    emulator.create_group(trainer, types=("local",), labels={TRAINER: trainer}, taints=dedicated)
    scaled = emulator.create_group(pool, types=("local",), size=2, labels={POOL: pool})

    async def labels() -> dict[str, str]:
        node = await kube.get(Kinds.NODE, None, name)
        found: dict[str, str] = node["metadata"]["labels"] if node else {}
        return found

    async def only_pool() -> bool:
        have = await labels()
        return have.get(POOL) == pool and TRAINER not in have

    await until("the pool's label alone, since the other group is at size 0", only_pool)
    scaling = emulator.client("autoscaling")
    eks = emulator.client("eks")
    group = eks.describe_nodegroup(clusterName=CLUSTER, nodegroupName=trainer)["nodegroup"]
    asg = group["resources"]["autoScalingGroups"][0]["name"]
    scaling.set_desired_capacity(AutoScalingGroupName=asg, DesiredCapacity=1)
    emulator.advance(320)

    async def both() -> bool:
        have = await labels()
        return (have.get(POOL), have.get(TRAINER)) == (pool, trainer)

    await until("both labels", both)
    node = await kube.get(Kinds.NODE, None, name)
    assert node is not None
    assert "taints" not in node["spec"]  # the control plane's own pods live there too

    container = {"name": "main", "image": "moerl.dev/pause:local", "imagePullPolicy": "Never"}
    body = {"nodeSelector": {POOL: pool}, "containers": [container], "terminationGracePeriodSeconds": 1}
    metadata = {"name": "worker", "namespace": namespace}
    await kube.create(Kinds.POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})

    async def runs() -> bool:
        found = await kube.get(Kinds.POD, namespace, "worker")
        return bool(found and found["status"]["phase"] == "Running")

    await until("the pod runs on the real node", runs)

    scaling.set_desired_capacity(AutoScalingGroupName=scaled, DesiredCapacity=1)
    emulator.advance(300)
    await stays("both labels while one instance is left", both, seconds=2)
    eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName=pool)
    emulator.advance(600)

    async def trainer_only() -> bool:
        have = await labels()
        gone = await kube.get(Kinds.POD, namespace, "worker") is None
        return POOL not in have and have.get(TRAINER) == trainer and gone

    await until("the pool's label and pod are gone, the trainer's stays", trainer_only)
    eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName=trainer)
    emulator.advance(600)

    async def clean() -> bool:
        have = await labels()
        return not {POOL, TRAINER, "topology.kubernetes.io/zone"} & set(have)

    await until("no label left", clean)
