"""The compared objects: the 48-node example as a MoERLJob and as a JobSet, with the same pods on the same nodes.

Nodes exist beforehand and are found by label (`provisioner: Existing`), so that both are measured on the
same work: from one created object to 48 running pods.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from moerl_local.cluster.kwok import node
from moerl_operator.api import names

Obj = dict[str, Any]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "qwen3-grpo-48-nodes.yaml"
SELECTOR = "bench.moerl.dev/nodes"
GPU_TYPE = "p5en.48xlarge"
_GPU_NODE = {
    "cpu": "192", "memory": "2Ti", "pods": "100", "ephemeral-storage": "500Gi",
    names.RESOURCE_GPU: "8", names.RESOURCE_EFA: "16", names.RESOURCE_HUGEPAGES: "16Gi",
}  # fmt: skip
_CPU_NODE = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "500Gi"}
TRAINERS, ROLLOUTS = 16, 32
GANG_PODS = TRAINERS + ROLLOUTS


def nodes() -> list[Obj]:
    """48 GPU nodes and 5 CPU nodes."""
    out: list[Obj] = []
    for number in range(GANG_PODS):
        labels = {SELECTOR: "gpu", "node.kubernetes.io/instance-type": GPU_TYPE}
        out.append(dict(node(f"bench-gpu-{number}", labels=labels, capacity=_GPU_NODE)))
    for number in range(5):
        labels = {SELECTOR: "cpu", "node.kubernetes.io/instance-type": "c7i.16xlarge"}
        out.append(dict(node(f"bench-cpu-{number}", labels=labels, capacity=_CPU_NODE)))
    return out


def moerl_job(name: str, namespace: str, *, finish: bool = False) -> Obj:
    """The example on the nodes that are there.

    Args:
        finish: the trainers' pods end with success at once, so that the job completes.
    """
    out: Obj = copy.deepcopy(yaml.safe_load(EXAMPLE.read_text()))
    out["metadata"] = {"name": name, "namespace": namespace}
    spec: Obj = out["spec"]
    for nodes_of, kind in _nodes(spec):
        for key in ("capacityType", "zones", "instanceTypes", "placementGroup"):
            nodes_of.pop(key, None)
        nodes_of |= {"provisioner": "Existing", "nodeSelector": {SELECTOR: kind}, "nodeClassName": "bench"}
        if kind == "gpu":
            nodes_of["instanceTypes"] = [GPU_TYPE]
    for pool in spec["rollout"]["pools"]:
        pool |= {"replicas": pool.pop("maxReplicas")}
        pool.pop("minReplicas", None)
    for role in ("trainer", "rollout", "environment"):
        _drop_images(spec[role])
    spec["buffer"]["template"] = {"spec": {"containers": [{"name": "main", "image": "fake"}]}}
    if finish:
        spec["trainer"]["template"]["metadata"] = {"annotations": {"fake.moerl.dev/do": "complete"}}
    return out


def server_pods() -> int:
    """Pods that the MoERLJob starts besides the gangs: environments, and the buffer's one."""
    return int(moerl_job("x", "x")["spec"]["environment"]["replicas"]) + 1


def _nodes(spec: Obj) -> list[tuple[Obj, str]]:
    gpu = [spec["trainer"]["nodes"], *(pool["nodes"] for pool in spec["rollout"]["pools"])]
    return [*((one, "gpu") for one in gpu), *((spec[role]["nodes"], "cpu") for role in ("environment", "buffer"))]


def _drop_images(role: Obj) -> None:
    for container in role["template"]["spec"]["containers"]:
        container["image"] = "fake"


def job_set(name: str, namespace: str) -> Obj:
    """The same 48 pods as a JobSet v1alpha2, with the fields spelled out that its webhook would default."""
    example: Obj = yaml.safe_load(EXAMPLE.read_text())
    replicas = sum(pool["maxReplicas"] for pool in example["spec"]["rollout"]["pools"])
    size = example["spec"]["rollout"]["pools"][0]["nodesPerReplica"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": []},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "replicatedJobs": [
                _replicated("trainer", 1, example["spec"]["trainer"]["nodes"]["count"]),
                _replicated("rollout", replicas, size),
            ],
        },
    }


def job_set_like(name: str, namespace: str, jobs: list[Obj]) -> Obj:
    """A JobSet whose pods are word for word those of a MoERLJob's `jobs`: environment, mounts, affinity, labels.

    Only names in our label domain are changed, so that the operator does not take the pods for its own, and the
    ServiceAccount, which went with the MoERLJob.
    """
    out = job_set(name, namespace)
    alike: dict[str, list[Obj]] = {}
    for job in jobs:
        labels = job["metadata"]["labels"]
        alike.setdefault(labels.get(names.LABEL_POOL) or labels[names.LABEL_ROLE], []).append(job)
    out["spec"]["replicatedJobs"] = [_replicated_like(group, same) for group, same in sorted(alike.items())]
    return out


def _replicated_like(name: str, jobs: list[Obj]) -> Obj:
    spec = jobs[0]["spec"]
    template: Obj = json.loads(json.dumps(spec["template"]).replace(f'"{names.GROUP}/', '"like.bench.invalid/'))
    for key in ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"):
        template["metadata"].get("labels", {}).pop(key, None)
    template["spec"] |= {"serviceAccountName": "default", "serviceAccount": "default"}
    kept = {key: spec[key] for key in ("completionMode", "completions", "parallelism", "backoffLimit")}
    return {"name": name, "replicas": len(jobs), "template": {"spec": {**kept, "template": template}}}


def _replicated(name: str, replicas: int, size: int) -> Obj:
    devices = {names.RESOURCE_GPU: "8", names.RESOURCE_EFA: "16", "memory": "1600Gi"}
    pod: Obj = {
        "restartPolicy": "Never",
        "nodeSelector": {SELECTOR: "gpu"},
        "tolerations": [{"key": names.RESOURCE_GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [
            {"name": "main", "image": "fake", "resources": {"requests": {"cpu": "160", **devices}, "limits": devices}}
        ],
    }
    job = {
        "completionMode": "Indexed",
        "completions": size,
        "parallelism": size,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {"name": name, "replicas": replicas, "template": {"spec": job}}
