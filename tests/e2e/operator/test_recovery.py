"""Attempts with the real Job controller: what it says of failed, deleted and evicted pods is what the policy reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moerl_local.cluster import kwok
from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi
from support.emulator import Emulator
from support.waiting import until

from .conftest import Jobs

pytestmark = pytest.mark.e2e
Obj = dict[str, Any]


async def tell(jobs: Jobs, pod: Obj, what: str) -> None:
    """Have a fake pod do something."""
    patch = {"metadata": {"annotations": {"fake.moerl.dev/do": what}}}
    await jobs.kube.patch(Kinds.POD, jobs.namespace, pod["metadata"]["name"], patch)


async def attempt_runs(jobs: Jobs, name: str, *, seconds: float = 120) -> Obj:
    """Wait until the job runs with exactly this attempt of what its name says."""
    slot = name.rpartition("-a")[0]

    async def there() -> Any:
        found = await jobs.get()
        assert found is not None
        made = [j["metadata"]["name"] for j in await jobs.kube.list(Kinds.JOB, jobs.namespace)]
        mine = [j for j in made if j.rpartition("-a")[0] == slot]
        return found if mine == [name] and found["status"]["display"]["state"] == "Running" else None

    found: Obj = await until(f"{name} runs alone", there, seconds=seconds)
    return found


def row(job: Obj, name: str) -> Obj:
    """A line of status.roles."""
    return next(r for r in job["status"]["roles"] if r["name"] == name)


async def test_a_failed_trainer_pod_restarts_the_gang_once(jobs: Jobs) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    rollouts = {p["metadata"]["uid"] for p in await jobs.pods(role="rollout")}
    await tell(jobs, (await jobs.pods(role="trainer"))[0], "fail:7")

    found = await attempt_runs(jobs, "tiny-trainer-a2")

    assert (row(found, "trainer")["attempt"], row(found, "trainer")["restarts"]) == (2, 1)
    failure = found["status"]["lastFailure"]
    assert (failure["kind"], failure["exitCode"], failure["child"]) == ("Application", 7, "tiny-trainer-a1")
    assert {p["metadata"]["uid"] for p in await jobs.pods(role="rollout")} == rollouts


async def test_deleted_and_evicted_pods_spend_no_budget(jobs: Jobs, cluster: Cluster) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    trainer = (await jobs.pods(role="trainer"))[1]
    await jobs.kube.delete(Kinds.POD, jobs.namespace, trainer["metadata"]["name"])
    found = await attempt_runs(jobs, "tiny-trainer-a2")
    assert row(found, "trainer")["restarts"] == 0
    assert found["status"]["lastFailure"]["kind"] == "Infrastructure"

    rollout = next(p for p in await jobs.pods(role="rollout") if p["metadata"]["labels"][names.LABEL_REPLICA] == "1")
    name = rollout["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": jobs.namespace}}
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{name}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
    found = await attempt_runs(jobs, "tiny-rollout-spot-1-a2")
    assert row(found, "spot")["restarts"] == 0
    jobs_now = {j["metadata"]["name"] for j in await jobs.kube.list(Kinds.JOB, jobs.namespace)}
    assert jobs_now == {"tiny-trainer-a2", "tiny-rollout-spot-0-a1", "tiny-rollout-spot-1-a2"}


async def test_a_lost_node_ends_the_attempt_long_before_kubernetes_would(
    jobs: Jobs, kube: KubeApi, cluster: Cluster
) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    node = (await jobs.pods(role="trainer"))[0]["spec"]["nodeName"]
    await kube.patch(Kinds.NODE, None, node, {"metadata": {"annotations": {kwok.LOST_ANNOTATION: "lost"}}})

    async def ended() -> Any:
        found = await kube.get(Kinds.JOB, jobs.namespace, "tiny-trainer-a1")
        return found and found["metadata"]["annotations"].get(names.ANNOTATION_ENDED) == "NodeLost"

    await until("the attempt is ended for its lost node", ended, seconds=150)

    async def told() -> bool:
        return (await jobs.condition("TrainersReady"))["reason"] == "NodeLost"

    await until("the condition says so", told)
    back = {"annotations": {kwok.LOST_ANNOTATION: None}, "labels": {kwok.LOST_LABEL: None}}
    await kube.patch(Kinds.NODE, None, node, {"metadata": back})
    found = await attempt_runs(jobs, "tiny-trainer-a2", seconds=180)
    assert row(found, "trainer")["restarts"] == 0


async def test_a_spent_budget_fails_the_job_and_frees_its_nodes(jobs: Jobs, aws: Emulator) -> None:
    policy = {"maxRestarts": 1, "backoff": {"initialSeconds": 1, "maxSeconds": 1}}
    made = await jobs.create(change=lambda spec: spec["trainer"].update(failurePolicy=policy))
    uid8 = names.uid8(made["metadata"]["uid"])
    await jobs.reaches("Running")
    await tell(jobs, (await jobs.pods(role="trainer"))[0], "fail:3")
    await attempt_runs(jobs, "tiny-trainer-a2")
    await tell(jobs, (await jobs.pods(role="trainer"))[0], "fail:3")

    found = await jobs.reaches("Failed")

    failed = next(c for c in found["status"]["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "RestartsExhausted"
    assert "exit code 3" in failed["message"]

    async def nothing_left() -> bool:
        return not any(uid8 in name for kind in aws.leftovers().values() for name in kind)

    await until("its groups are gone", nothing_left, seconds=120)
    assert await jobs.pods() == []


async def test_suspend_and_resume(jobs: Jobs, kube: KubeApi) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    await kube.patch(Kinds.MOERL_JOB, jobs.namespace, "tiny", {"spec": {"suspend": True}})
    await jobs.reaches("Suspended")
    assert await jobs.pods() == []
    await kube.patch(Kinds.MOERL_JOB, jobs.namespace, "tiny", {"spec": {"suspend": False}})
    found = await attempt_runs(jobs, "tiny-trainer-a2", seconds=180)
    assert len(found["status"]["nodeGroups"]) == 4
    assert all(group["name"].endswith("-1") for group in found["status"]["nodeGroups"])


async def test_a_smaller_pool_gives_back_idle_nodes_only(jobs: Jobs, kube: KubeApi, aws: Emulator) -> None:
    made = await jobs.create()
    await jobs.reaches("Running")
    kept = next(p for p in await jobs.pods(role="rollout") if p["metadata"]["labels"][names.LABEL_REPLICA] == "0")
    pools = [made["spec"]["rollout"]["pools"][0] | {"replicas": 1}]
    await kube.patch(Kinds.MOERL_JOB, jobs.namespace, "tiny", {"spec": {"rollout": {"pools": pools}}})
    group = names.node_group(made["metadata"]["uid"], "spot", 1)

    async def one_node() -> bool:
        return len(await kube.list(Kinds.NODE, label_selector=f"pool.moerl.dev/spot={group}")) == 1

    await until("one node is left", one_node, seconds=120)
    left = await jobs.pods(role="rollout")
    assert [p["metadata"]["uid"] for p in left] == [kept["metadata"]["uid"]]
