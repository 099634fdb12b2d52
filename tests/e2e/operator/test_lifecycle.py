"""The whole way of a job on fake nodes: groups, nodes, pods, Running, Complete, gone."""

from __future__ import annotations

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi
from support.emulator import Emulator
from support.operator import Audit, OperatorProcess
from support.waiting import until

from .conftest import Jobs

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

    for pod in await jobs.pods(role="trainer"):
        patch = {"metadata": {"annotations": {"fake.moerl.dev/do": "complete"}}}
        await jobs.kube.patch(Kinds.POD, jobs.namespace, pod["metadata"]["name"], patch)
    complete = await jobs.reaches("Complete")

    async def nothing_left() -> bool:
        return not any(uid8 in name for kind in aws.leftovers().values() for name in kind)

    await until("the job's groups are gone", nothing_left, seconds=120)

    async def no_finalizer() -> bool:
        found = await jobs.get()
        return names.FINALIZER not in ((found or {})["metadata"].get("finalizers") or [])

    await until("the finalizer is gone", no_finalizer)
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
