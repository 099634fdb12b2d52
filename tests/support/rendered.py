"""Children as the builders render them for a few jobs that differ in what matters: devices, framework, storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moerl_operator.api import names
from moerl_operator.core.groups import role_context
from moerl_operator.core.view import View, open_view
from moerl_operator.manifests.context import RoleContext
from support.simulated_world import World, job_spec, nodes

Obj = dict[str, Any]
CUSTOM: Obj = {"spec": {"containers": [{"name": "main", "image": "user/image:1", "command": ["train"]}]}}


def native_spec() -> Obj:
    """The small native job on CPU nodes, with both scoring roles."""
    return job_spec(reward={"replicas": 1, "nodes": nodes()})


def gpu_spec(transport: str = "EFAGDA", kind: str = "p5en.48xlarge") -> Obj:
    """A custom job on whole GPU nodes, with a buffer on a volume."""
    spec = job_spec(framework={"type": "Custom"})
    for key in ("algorithm", "model"):
        del spec[key]
    spec["communication"] = {"expertParallel": {"backend": "Auto", "transport": transport, "onMismatch": "Fail"}}
    spec["trainer"] |= {"nodes": nodes(2, kind), "template": CUSTOM}
    spec["rollout"] |= {"template": CUSTOM}
    spec["rollout"]["pools"][0] |= {"nodes": nodes(kind=kind), "nodesPerReplica": 2}
    spec["buffer"]["storage"] = {"type": "PVC", "size": "100Gi", "storageClassName": "gp3"}
    return spec


def proving_spec(transport: str = "EFAGDA", kind: str = "p5en.48xlarge") -> Obj:
    """A native job whose trainer and rollouts prove their transport first."""
    spec = native_spec()
    spec["communication"] = {"expertParallel": {"backend": "Auto", "transport": transport, "onMismatch": "Fail"}}
    spec["trainer"] |= {"nodes": nodes(2, kind)}
    spec["rollout"]["pools"][0] |= {"nodes": nodes(kind=kind)}
    return spec


SPECS: dict[str, Obj] = {
    "native": native_spec(),
    "native-efa-gda": proving_spec(),
    "native-tcp": proving_spec("TCP", "c7i.large"),
    "efa-gda": gpu_spec(),
    "efa-proxy": gpu_spec("EFAProxy", "p5.48xlarge"),
    "nvlink": gpu_spec("NVLink"),
    "single-gpu": gpu_spec("TCP", "g6.xlarge"),
}


def view(spec: Obj, **class_changes: Any) -> View:
    """The view of a job that has just been applied."""
    return open_view(World(spec, **class_changes).snapshot())


def context(spec: Obj, key: str, **class_changes: Any) -> RoleContext:
    """The part `key` of a job, placed on a group of its own."""
    seen = view(spec, **class_changes)
    part = seen.part(key)
    assert part is not None
    group = names.node_group(seen.uid, key, 1)
    return replace(role_context(seen, part), node_selector={part.label: group}, node_group=group, attempt=1)
