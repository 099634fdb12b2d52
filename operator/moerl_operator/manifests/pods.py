"""Injection into the user's pod template: what a role needs beyond the words of its user.

The user's own settings win, except for the identity of the pod, its labels and its place. The main
container is the one called `main`, else the first; without a template there is one of our own.
"""

from __future__ import annotations

import copy
from typing import Any

from moerl_operator.api import names
from moerl_operator.manifests import devices, environment, security, transport
from moerl_operator.manifests.context import RoleContext

Obj = dict[str, Any]

VOLUME_CONFIG = "moerl-config"
VOLUME_RUN = "moerl-run"
VOLUME_SHM = "moerl-shm"
VOLUME_DATA = "data"
DATA_DIR = "/data"

# Seconds from SIGTERM to SIGKILL. Trainer: one checkpoint; rollout: inside Spot's two minutes, minus their detection.
GRACE_SECONDS = {names.TRAINER: 120, names.ROLLOUT: 90, names.REWARD: 30, names.ENVIRONMENT: 30, names.BUFFER: 60}
# What the main container of the native runtime runs, and the sidecar beside it.
_NATIVE_MAIN = {names.ROLLOUT: "engine"}
_NATIVE_SIDECAR = {names.TRAINER: names.CONTAINER_AGENT, names.ROLLOUT: names.CONTAINER_DRIVER}
_KEEP = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}


def pod_template(role: RoleContext, child: str) -> Obj:
    """PodTemplateSpec of a role for the child object called `child`."""
    effective = effective_transport(role)
    efa = wants_efa(role)
    kind = security.pod_class(gpus=role.facts.gpus, efa=efa)
    template = copy.deepcopy(dict(role.template))
    spec: Obj = template.setdefault("spec", {})
    _containers(role, spec)
    main = main_container(spec)
    main["resources"] = devices.main(role, main.get("resources") or {}, efa=efa)
    for container in spec.get("initContainers") or ():
        if container.get("name") == names.CONTAINER_PREFLIGHT and role.role in (names.TRAINER, names.ROLLOUT):
            container["resources"] = devices.preflight(role, container.get("resources") or {}, main["resources"])
    strong = environment.identity(role)
    if role.role in (names.TRAINER, names.ROLLOUT):
        strong += environment.rendezvous(role, child)
    weak = environment.defaults(role, effective)
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        container["env"] = environment.merge(weak, container.get("env") or [], strong)
        container["securityContext"] = security.container_context(kind) | (container.get("securityContext") or {})
        _mounts(role, container, main=container is main)
    _volumes(role, spec)
    spec["securityContext"] = security.pod_context(kind) | (spec.get("securityContext") or {})
    _placement(role, spec)
    _settings(role, spec)
    meta: Obj = template.setdefault("metadata", {})
    meta["labels"] = (meta.get("labels") or {}) | role.labels
    meta["annotations"] = _KEEP | (meta.get("annotations") or {}) | {names.ANNOTATION_REVISION: role.revision}
    return template


def main_container(spec: Obj) -> Obj:
    """The container called `main`, else the first."""
    containers: list[Obj] = spec["containers"]
    return next((c for c in containers if c.get("name") == names.CONTAINER_MAIN), containers[0])


def effective_transport(role: RoleContext) -> str:
    """The transport whose devices and variables the pods of this role get."""
    return transport.resolve(role.job.spec.communication.expert_parallel.transport, role.facts, role.gang)


def wants_efa(role: RoleContext) -> bool:
    """EFA devices go to the roles that hold tensors, on types that have them."""
    moves_tensors = role.role in (names.TRAINER, names.ROLLOUT)
    return moves_tensors and role.facts.efa_interfaces > 0 and transport.uses_efa(effective_transport(role))


def is_native(role: RoleContext) -> bool:
    """Whether this project's own runtime is in the containers."""
    return role.job.spec.framework.type == "Native"


def _containers(role: RoleContext, spec: Obj) -> None:
    """Fill in the main container and, for the native runtime, add the sidecar."""
    if not spec.get("containers"):
        spec["containers"] = [{"name": names.CONTAINER_MAIN}]
    main = main_container(spec)
    defaults = role.node_class.defaults
    if "image" not in main and defaults.image:
        main["image"] = defaults.image
    if is_native(role):
        if "command" not in main:
            main["command"] = _command(_NATIVE_MAIN.get(role.role, role.role))
            if role.role == names.ROLLOUT:
                main["args"] = [*(main.get("args") or []), *(role.job.spec.rollout.engine.args or [])]
        _readiness(role, main)
        if role.role in _NATIVE_SIDECAR:
            _sidecar(role, spec, main)
    _preflight(role, spec, main)
    if defaults.image_pull_policy:
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            container.setdefault("imagePullPolicy", defaults.image_pull_policy)


def _sidecar(role: RoleContext, spec: Obj, main: Obj) -> None:
    """A native sidecar (an init container that restarts): it starts before the main container and ends after it."""
    name = _NATIVE_SIDECAR[role.role]
    init: list[Obj] = spec.setdefault("initContainers", [])
    sidecar = next((c for c in init if c.get("name") == name), None)
    if sidecar is None:
        sidecar = {"name": name}
        init.append(sidecar)
    sidecar.setdefault("image", main.get("image", ""))
    sidecar.setdefault("command", _command(name))
    sidecar["restartPolicy"] = "Always"
    sidecar["resources"] = devices.sidecar(role, sidecar.get("resources") or {})
    sidecar.setdefault("ports", [{"name": "metrics", "containerPort": names.PORT_AGENT}])
    sidecar.setdefault("readinessProbe", _http_probe(names.PORT_AGENT))


def proves_transport(role: RoleContext) -> bool:
    """Whether pods get the preflight of their own accord.

    Only where the image is this project's runtime, and where there is something to prove: a transport that was asked
    for by name, or GPUs, whose traffic can fall back. A template of any framework asks for it by the container's name.
    """
    asked = role.job.spec.communication.expert_parallel.transport != "Auto" or role.facts.gpus > 0
    return is_native(role) and role.role in (names.TRAINER, names.ROLLOUT) and asked


def _preflight(role: RoleContext, spec: Obj, main: Obj) -> None:
    """The transport proof, before anything else starts; its last words are its verdict (moerl_kernels.proof)."""
    if role.role not in (names.TRAINER, names.ROLLOUT):
        return
    init: list[Obj] = spec.get("initContainers") or []
    found = next((c for c in init if c.get("name") == names.CONTAINER_PREFLIGHT), None)
    if found is None:
        if not proves_transport(role):
            return
        found = {"name": names.CONTAINER_PREFLIGHT}
        spec["initContainers"] = [found, *init]
    found.setdefault("image", main.get("image", ""))
    found.setdefault("command", ["python", "-m", "moerl_kernels", "preflight", "--json"])
    # If it cannot even start, the end of its log is all that there is to tell.
    found.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _readiness(role: RoleContext, main: Obj) -> None:
    """How the kubelet learns that a service can be used; the others are ready when their sidecar is."""
    if role.role in (names.REWARD, names.ENVIRONMENT):
        main.setdefault("ports", [{"name": "http", "containerPort": names.PORT_SERVICE}])
        main.setdefault("readinessProbe", _http_probe(names.PORT_SERVICE))
    elif role.role == names.BUFFER:
        main.setdefault("ports", [{"name": "redis", "containerPort": names.PORT_REDIS}])
        main.setdefault("readinessProbe", {"tcpSocket": {"port": names.PORT_REDIS}, "periodSeconds": 2})


def _http_probe(port: int) -> Obj:
    return {"httpGet": {"path": "/readyz", "port": port}, "periodSeconds": 5, "timeoutSeconds": 5}


def _command(program: str) -> list[str]:
    return ["python", "-m", "moerl_runtime", program]


def _mounts(role: RoleContext, container: Obj, *, main: bool) -> None:
    wanted: list[Obj] = [
        {"name": VOLUME_CONFIG, "mountPath": names.CONFIG_DIR, "readOnly": True},
        {"name": VOLUME_RUN, "mountPath": names.RUN_DIR},
    ]
    if role.facts.gpus:
        wanted.append({"name": VOLUME_SHM, "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    if main and _has_data(role):
        wanted.append({"name": VOLUME_DATA, "mountPath": DATA_DIR})
    own: list[Obj] = list(container.get("volumeMounts") or [])
    taken = {mount.get("mountPath") for mount in own}
    container["volumeMounts"] = own + [mount for mount in wanted if mount["mountPath"] not in taken]


def _volumes(role: RoleContext, spec: Obj) -> None:
    wanted: list[Obj] = [
        {"name": VOLUME_CONFIG, "configMap": {"name": names.config_map(role.job.name)}},
        {"name": VOLUME_RUN, "emptyDir": {}},
    ]
    if role.facts.gpus:
        wanted.append({"name": VOLUME_SHM, "emptyDir": {"medium": "Memory"}})
    own: list[Obj] = list(spec.get("volumes") or [])
    taken = {volume.get("name") for volume in own}
    spec["volumes"] = own + [volume for volume in wanted if volume["name"] not in taken]


def _has_data(role: RoleContext) -> bool:
    return role.role == names.BUFFER and role.job.spec.buffer.storage.type == "PVC"


def _placement(role: RoleContext, spec: Obj) -> None:
    """On the nodes of the role's own group, past their taint; GPU pods never two on a node.

    Traffic between two EFA pods of one node is dropped, and a node split between NCCL pods breaks aws-ofi-nccl.
    """
    spec["nodeSelector"] = (spec.get("nodeSelector") or {}) | dict(role.node_selector)
    tolerations: list[Obj] = list(spec.get("tolerations") or [])
    if role.node_group:
        tolerations.append(_toleration(names.TAINT_DEDICATED, names.uid8(role.job.uid)))
    if role.facts.gpus:
        tolerations.append({"key": names.RESOURCE_GPU, "operator": "Exists", "effect": "NoSchedule"})
        affinity: Obj = spec.setdefault("affinity", {})
        anti: Obj = affinity.setdefault("podAntiAffinity", {})
        terms: list[Obj] = anti.setdefault("requiredDuringSchedulingIgnoredDuringExecution", [])
        roles = {"key": names.LABEL_ROLE, "operator": "In", "values": [names.TRAINER, names.ROLLOUT]}
        terms.append(
            {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {names.LABEL_JOB_UID: role.job.uid}, "matchExpressions": [roles]},
            }
        )
    if tolerations:
        spec["tolerations"] = tolerations


def _toleration(key: str, value: str) -> Obj:
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


def _settings(role: RoleContext, spec: Obj) -> None:
    job = role.job
    spec.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS[role.role])
    spec.setdefault("enableServiceLinks", False)
    spec.setdefault("serviceAccountName", job.service_account)
    # Only the trainer's agent talks to the API server, and only to patch the report.
    spec.setdefault("automountServiceAccountToken", role.role == names.TRAINER)
    if job.spec.priority_class_name:
        spec.setdefault("priorityClassName", job.spec.priority_class_name)
    if role.role in (names.TRAINER, names.ROLLOUT):
        spec["restartPolicy"] = "Never"
        spec["subdomain"] = names.service(job.name, role.role)
