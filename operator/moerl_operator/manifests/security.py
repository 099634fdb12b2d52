"""The security context of each kind of pod, and the pod-security level that it therefore needs.

Everything is `restricted` but pods with EFA devices: registering memory with the adapter needs
IPC_LOCK, which the levels `restricted` and `baseline` do not allow.
"""

from __future__ import annotations

from typing import Any, Literal

Obj = dict[str, Any]
PodClass = Literal["cpu", "gpu", "efa"]

# Checked by real admission in the e2e tests.
POD_SECURITY_LEVEL: dict[PodClass, str] = {"cpu": "restricted", "gpu": "restricted", "efa": "privileged"}

# No account of a distribution: `nonroot` of the common minimal images.
USER_ID = 65532


def pod_class(*, gpus: int, efa: bool) -> PodClass:
    """Which row of the table a pod belongs to."""
    if efa:
        return "efa"
    return "gpu" if gpus else "cpu"


def pod_context(kind: PodClass) -> Obj:
    """securityContext of the pod. A capability has no effect for other users than root, so EFA pods stay root."""
    context: Obj = {"seccompProfile": {"type": "RuntimeDefault"}}
    if kind != "efa":
        context |= {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID}
    return context


def container_context(kind: PodClass) -> Obj:
    """securityContext of every container."""
    capabilities: Obj = {"drop": ["ALL"]}
    if kind == "efa":
        capabilities["add"] = ["IPC_LOCK"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}
