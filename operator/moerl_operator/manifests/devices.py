"""Resources of a role's containers: whole nodes where there are GPUs, modest requests where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moerl_operator.api import names
from moerl_operator.manifests.context import RoleContext

Obj = dict[str, Any]

# The EFA driver of one process pre-allocates about 5 GiB of huge pages (EKS user guide, node-efa).
HUGEPAGES = "5120Mi"
# Left to the kubelet, the system and daemon sets on a node that one pod otherwise has for itself.
_CPU_SHARE = 0.9
_MEMORY_SHARE = 0.85

# Small enough for all roles of a job on one two-core machine; a template says what real work needs.
MODEST: dict[str, Obj] = {
    names.TRAINER: {"cpu": "200m", "memory": "512Mi"},
    names.ROLLOUT: {"cpu": "200m", "memory": "512Mi"},
    names.REWARD: {"cpu": "50m", "memory": "64Mi"},
    names.ENVIRONMENT: {"cpu": "50m", "memory": "64Mi"},
    names.BUFFER: {"cpu": "50m", "memory": "64Mi"},
}
SIDECAR: Obj = {"cpu": "50m", "memory": "128Mi"}
SIDECAR_WHOLE_NODE: Obj = {"cpu": "2", "memory": "4Gi"}


def main(role: RoleContext, own: Mapping[str, Any], *, efa: bool) -> Obj:
    """Resources of the main container; what the template gives wins, name by name."""
    requests: Obj = dict(MODEST[role.role])
    limits: Obj = {}
    if role.facts.gpus:
        limits = _whole_node(role, efa=efa)
        requests = dict(limits)
    if role.role == names.BUFFER and role.job.spec.buffer.storage.type == "Memory":
        limits["memory"] = role.job.spec.buffer.storage.size
    return _merge(requests, limits, own)


def sidecar(role: RoleContext, own: Mapping[str, Any]) -> Obj:
    """Resources of agent and driver; limits equal requests beside GPUs, where a throttled pod is a slow collective."""
    if role.facts.gpus:
        return _merge(dict(SIDECAR_WHOLE_NODE), dict(SIDECAR_WHOLE_NODE), own)
    return _merge(dict(SIDECAR), {}, own)


def preflight(role: RoleContext, own: Mapping[str, Any], of_main: Mapping[str, Any]) -> Obj:
    """Resources of the preflight: the main container's devices, which the kubelet hands on to it afterwards.

    A pod's request is the larger of its init containers' and its containers', so this makes no pod larger.
    """
    if role.facts.gpus:
        return _merge(dict(of_main.get("requests") or {}), dict(of_main.get("limits") or {}), own)
    return _merge(dict(SIDECAR), {}, own)


def _whole_node(role: RoleContext, *, efa: bool) -> Obj:
    facts = role.facts
    out: Obj = {names.RESOURCE_GPU: str(facts.gpus)}
    if facts.vcpus:
        out["cpu"] = str(int(facts.vcpus * _CPU_SHARE))
    if facts.memory_mib:
        out["memory"] = f"{int(facts.memory_mib * _MEMORY_SHARE)}Mi"
    if efa:
        out[names.RESOURCE_EFA] = str(facts.efa_interfaces)
        out[names.RESOURCE_HUGEPAGES] = HUGEPAGES
    return out


def _merge(requests: Obj, limits: Obj, own: Mapping[str, Any]) -> Obj:
    own_requests, own_limits = dict(own.get("requests") or {}), dict(own.get("limits") or {})
    # A user's limit alone would be below our default request, or above it and no longer equal to it.
    requests |= {key: value for key, value in own_limits.items() if key not in own_requests and key in requests}
    limits |= {key: value for key, value in own_requests.items() if key in limits and key not in own_limits}
    out: Obj = {"requests": requests | own_requests}
    if limits | own_limits:
        out["limits"] = limits | own_limits
    if "claims" in own:
        out["claims"] = own["claims"]
    return out
