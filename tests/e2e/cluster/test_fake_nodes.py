"""Fake nodes do what they are told, as the real scheduler and controllers see them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from moerl_local.cluster import kwok
from moerl_local.cluster.handle import Cluster
from support.fake_nodes import Field, condition, eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def field(cluster: Cluster) -> Iterator[Field]:
    made = Field(cluster, f"fake-{uuid.uuid4().hex[:6]}")
    made.open()
    yield made
    made.close()


def running(field: Field, *pods: str) -> bool:
    return all(field.phase(pod) == "Running" for pod in pods)


def test_pods_run_ready_until_told(field: Field) -> None:
    gpus = {"limits": {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}}
    field.create(
        field.pod("a", containers=[{"name": "main", "image": "none", "resources": gpus}]),
        field.pod("b", containers=[{"name": "main", "image": "none", "resources": gpus}]),
        field.pod("c", containers=[{"name": "main", "image": "none", "resources": gpus}]),
        field.pod(
            "sidecar",
            initContainers=[
                {"name": "preflight", "image": "none"},
                {"name": "agent", "image": "none", "restartPolicy": "Always"},
            ],
        ),
    )
    eventually(lambda: running(field, "a", "b", "sidecar"))
    assert {field.get("pod", pod)["spec"]["nodeName"] for pod in "ab"} == set(field.nodes)
    assert condition(field.get("pod", "c"), "PodScheduled")["reason"] == "Unschedulable"
    pod = field.get("pod", "sidecar")
    assert condition(pod, "Ready")["status"] == "True"
    assert pod["status"]["podIP"].startswith("10.")
    preflight, agent = pod["status"]["initContainerStatuses"]
    assert preflight["state"]["terminated"]["exitCode"] == 0
    assert agent["state"]["running"]
    assert agent["ready"]


def test_complete_and_fail_with_a_code(field: Field) -> None:
    field.create(
        field.pod("done", initContainers=[{"name": "agent", "image": "none", "restartPolicy": "Always"}]),
        field.pod("crash"),
        field.pod("early", annotations={kwok.DO: "fail:3"}),
    )
    eventually(lambda: running(field, "done", "crash"))
    field.tell("done", "complete")
    field.tell("crash", "fail:42")
    eventually(lambda: field.phase("done") == "Succeeded" and field.phase("crash") == "Failed")
    eventually(lambda: field.phase("early") == "Failed")
    for pod, code in {"done": 0, "crash": 42, "early": 3}.items():
        status = field.get("pod", pod)["status"]
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code
        assert condition({"status": status}, "Ready")["status"] == "False"


def test_job_controller_reads_the_exit_code(field: Field) -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}}]
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "gang", "namespace": field.name},
        "spec": {
            "completions": 4,
            "parallelism": 4,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": {"spec": field.pod_spec()},
        },
    }
    field.create(job)
    pods = eventually(lambda: len(found := field.get("pods", "-l", "job-name=gang")) == 4 and found)
    eventually(lambda: running(field, *(pod["metadata"]["name"] for pod in pods)))
    field.tell(pods[2]["metadata"]["name"], "fail:42")
    failed = eventually(lambda: condition(field.get("job", "gang"), "Failed"))
    assert failed["reason"] == "PodFailurePolicy"
    assert "exit code 42" in failed["message"]


@pytest.mark.parametrize(("code", "outcome"), [("0", "Succeeded"), ("143", "Failed")])
def test_deletion_drains_fast_with_the_code_asked_for(field: Field, code: str, outcome: str) -> None:
    seen = field.pod("p", annotations={kwok.ON_TERM: code}, terminationGracePeriodSeconds=300)
    seen["metadata"]["finalizers"] = ["moerl.dev/look"]  # holds the object so that its last status can be read
    field.create(seen)
    eventually(lambda: running(field, "p"))
    began = time.monotonic()
    field.cluster.kubectl("-n", field.name, "delete", "pod", "p", "--wait=false")
    eventually(lambda: field.phase("p") == outcome)
    pod = eventually(lambda: (found := field.get("pod", "p"))["metadata"]["deletionGracePeriodSeconds"] == 0 and found)
    assert time.monotonic() - began < 10
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == int(code)
    field.cluster.kubectl(
        "-n", field.name, "patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    eventually(lambda: field.phase("p") is None)


def test_hang_is_killed_after_the_grace_period(field: Field) -> None:
    field.create(field.pod("p", annotations={kwok.DO: "hang"}, terminationGracePeriodSeconds=4))
    eventually(lambda: running(field, "p"))
    began = time.monotonic()
    field.cluster.kubectl("-n", field.name, "delete", "pod", "p", "--wait=false")
    eventually(lambda: field.phase("p") is None)
    assert 3 <= time.monotonic() - began < 15


def test_stuck_terminating_stays_until_told_otherwise(field: Field) -> None:
    field.create(field.pod("p", annotations={kwok.DO: "stuck-terminating"}, terminationGracePeriodSeconds=1))
    eventually(lambda: running(field, "p"))
    field.cluster.kubectl("-n", field.name, "delete", "pod", "p", "--wait=false")
    time.sleep(3)
    assert running(field, "p")
    field.tell("p", "complete")
    eventually(lambda: field.phase("p") is None)


def test_lost_node_falls_silent_and_comes_back(field: Field) -> None:
    node = field.nodes[0]
    field.create(field.pod("p", nodeName=node))
    eventually(lambda: running(field, "p"))
    kwok.lose(field.cluster.admin, node)
    eventually(lambda: condition(field.get("node", node), "Ready")["status"] == "Unknown")
    taints = eventually(lambda: field.get("node", node)["spec"].get("taints"))
    eventually(lambda: "node.kubernetes.io/unreachable" in {taint["key"] for taint in taints})
    lease = field.get("lease", node, "-n", "kube-node-lease")["spec"]["renewTime"]
    field.cluster.kubectl("-n", field.name, "delete", "pod", "p", "--wait=false")
    time.sleep(12)  # longer than a heartbeat, 10 s
    assert field.phase("p") == "Running", "nobody answers on a lost node, so its pod stays Terminating"
    assert field.get("lease", node, "-n", "kube-node-lease")["spec"]["renewTime"] == lease
    kwok.restore(field.cluster.admin, node)
    eventually(lambda: condition(field.get("node", node), "Ready")["status"] == "True")
    eventually(lambda: field.phase("p") is None)


def test_forty_eight_nodes_and_a_gang(field: Field) -> None:
    nodes = [f"{field.name}-n{index}" for index in range(48)]
    label = {"field": f"{field.name}-gang"}
    capacity = {"cpu": "192", "memory": "2Ti", "pods": "100", "nvidia.com/gpu": "8"}
    try:
        field.create(*(kwok.node(node, labels=label, capacity=capacity) for node in nodes))
        resources = {"limits": {"nvidia.com/gpu": "8"}}
        template = field.pod_spec(
            nodeSelector=label, containers=[{"name": "main", "image": "none", "resources": resources}]
        )
        spec = {"completions": 48, "parallelism": 48, "completionMode": "Indexed", "template": {"spec": template}}
        metadata = {"name": "gang", "namespace": field.name}
        field.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
        eventually(lambda: field.get("job", "gang")["status"].get("ready") == 48, within_s=60)
        pods = field.get("pods", "-l", "job-name=gang")
        assert len({pod["spec"]["nodeName"] for pod in pods}) == 48
        assert len({pod["status"]["podIP"] for pod in pods}) == 48
    finally:
        field.cluster.kubectl("delete", "node", *nodes, "--ignore-not-found")
