"""The whole way of a job on fake nodes: groups, nodes, pods, Running, Complete, gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi
from support.emulator import Emulator
from support.operator import Audit, OperatorProcess
from support.waiting import until

from .conftest import NODE_CLASS, Jobs

pytestmark = pytest.mark.e2e


async def test_a_job_gets_its_groups_nodes_and_pods_and_runs(
    jobs: Jobs, aws: Emulator, kube: KubeApi, cluster: Cluster, operator: OperatorProcess
) -> None:
    audit = Audit(cluster)
    made = await jobs.create()
    uid = made["metadata"]["uid"]

    running = await jobs.reaches("Running")

    assert names.FINALIZER in running["metadata"]["finalizers"]
    groups = {group["name"]: group for group in running["status"]["nodeGroups"]}
    assert set(groups) == {names.node_group(uid, part, 1) for part in ("trainer", "spot", "environment", "buffer")}
    assert all(group["desired"] == group["ready"] for group in groups.values())
    assert len(await jobs.pods(role="trainer")) == 2
    assert len(await jobs.pods(role="rollout")) == 2
    assert running["status"]["display"]["transport"] == "unverified"

    nodes = await kube.list(Kinds.NODE, label_selector=f"role.moerl.dev/trainer={names.node_group(uid, 'trainer', 1)}")
    taints = [taint for node in nodes for taint in node["spec"]["taints"] if taint["key"] == names.TAINT_DEDICATED]
    assert [taint["value"] for taint in taints] == [names.uid8(uid)] * 2

    secret = await kube.get(Kinds.SECRET, jobs.namespace, names.buffer_secret("tiny"))
    assert secret is not None
    assert len(secret["data"]["password"]) > 40
    events = [event["reason"] for event in await kube.list(Kinds.EVENT, jobs.namespace) if event["reportingController"]]
    assert {"NodeGroupCreating", "Ready"} <= set(events)
    assert operator.metric("moerl_job_nodes_ready", f'namespace="{jobs.namespace}"') == 6
    assert operator.metric("moerl_reconcile_total", 'result="error"') == 0
    assert audit.forbidden() == []


async def test_a_job_whose_trainers_end_well_is_complete_and_gives_its_nodes_back(jobs: Jobs, aws: Emulator) -> None:
    made = await jobs.create()
    uid8 = names.uid8(made["metadata"]["uid"])
    await jobs.reaches("Running")

    complete = await jobs.finish()

    async def nothing_left() -> bool:
        return not any(uid8 in name for kind in aws.leftovers().values() for name in kind)

    await until("the job's groups are gone", nothing_left, seconds=120)

    assert complete["status"]["completionTime"]
    # Terminal is sticky: nothing comes back.
    assert await jobs.state() == "Complete"
    assert await jobs.pods(role="trainer") == [] or all(
        pod["status"]["phase"] in ("Succeeded", "Failed") for pod in await jobs.pods(role="trainer")
    )


async def test_deletion_in_the_middle_of_node_group_creation_leaves_nothing(jobs: Jobs, aws: Emulator) -> None:
    made = await jobs.create()
    uid8 = names.uid8(made["metadata"]["uid"])

    async def creating() -> bool:
        groups = aws.state()["node_groups"]
        found = groups.values() if isinstance(groups, dict) else groups
        return any(uid8 in group["name"] and group["status"] == "CREATING" for group in found)

    await until("a node group is being created", creating)
    await jobs.delete()
    await until("the job is gone", jobs.is_gone, seconds=120)

    left = [name for kind in aws.leftovers().values() for name in kind if uid8 in name]
    assert left == []


async def test_a_namesake_made_at_once_after_deletion_is_a_job_of_its_own(jobs: Jobs) -> None:
    first = await jobs.create()
    await jobs.reaches("Running")
    await jobs.delete()
    await until("the first is gone", jobs.is_gone, seconds=120)
    second = await jobs.create()

    running = await jobs.reaches("Running")

    assert running["metadata"]["uid"] == second["metadata"]["uid"] != first["metadata"]["uid"]
    owners = {pod["metadata"]["labels"][names.LABEL_JOB_UID] for pod in await jobs.pods(role="trainer")}
    assert second["metadata"]["uid"] in owners


async def test_deleting_the_namespace_takes_the_job_and_its_groups_with_it(
    jobs: Jobs, aws: Emulator, kube: KubeApi, cluster: Cluster
) -> None:
    made = await jobs.create()
    uid8 = names.uid8(made["metadata"]["uid"])
    await jobs.reaches("Running")
    await kube.delete(Kinds.NAMESPACE, None, jobs.namespace)

    async def namespace_gone() -> bool:
        return await kube.get(Kinds.NAMESPACE, None, jobs.namespace) is None

    await until("the namespace is gone", namespace_gone, seconds=180)
    assert [name for kind in aws.leftovers().values() for name in kind if uid8 in name] == []


@pytest.mark.timeout(600)
async def test_the_example_of_48_gpu_nodes_runs_and_leaves_nothing(
    jobs: Jobs, aws: Emulator, kube: KubeApi, root: Path
) -> None:
    manifest = yaml.safe_load((root / "examples/qwen3-grpo-48-nodes.yaml").read_text())
    manifest["metadata"]["namespace"] = jobs.namespace
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    pools = [pool["nodes"] for pool in spec["rollout"]["pools"]]
    for nodes in (*pools, *(spec[role]["nodes"] for role in ("trainer", "environment", "buffer"))):
        nodes["nodeClassName"] = NODE_CLASS
    made = await kube.create(Kinds.MOERL_JOB, manifest)
    uid8 = names.uid8(made["metadata"]["uid"])

    await jobs.reaches("Running", name, seconds=400)

    async def on_gpus() -> bool:
        pods = [pod for role in ("trainer", "rollout") for pod in await jobs.pods(role=role)]
        on = {pod["spec"].get("nodeName") for pod in pods if pod["status"]["phase"] == "Running"}
        return len(pods) == len(on - {None}) == 48

    async def whole() -> bool:
        display = (await jobs.get(name) or {})["status"]["display"]
        return (display["state"], display["trainers"], display["rollouts"]) == ("Running", "16/16", "8/8")

    await until("48 pods run on 48 GPU nodes", on_gpus, seconds=200)
    await until("the job is Running with all its replicas", whole)
    running = await jobs.reaches("Running", name)
    ready = await jobs.condition("Ready", name)
    assert (ready["status"], running["status"]["display"]["transport"]) == ("True", "unverified")

    await jobs.delete(name)
    await until("the job is gone", lambda: jobs.is_gone(name), seconds=180)
    assert [item for kind in aws.leftovers().values() for item in kind if uid8 in item] == []

    async def nothing_left() -> bool:
        kinds = [Kinds.POD, Kinds.JOB, Kinds.DEPLOYMENT, Kinds.STATEFUL_SET, Kinds.SERVICE, Kinds.CONFIG_MAP]
        kinds += [Kinds.SECRET, Kinds.ROLE, Kinds.ROLE_BINDING, Kinds.NETWORK_POLICY, Kinds.POD_DISRUPTION_BUDGET]
        children = [
            child for kind in kinds for child in await kube.list(kind, jobs.namespace, label_selector="moerl.dev/job")
        ]
        return not children and not any(uid8 in str(node["metadata"]["labels"]) for node in await kube.list(Kinds.NODE))

    await until("its children and nodes are gone", nothing_left, seconds=120)
