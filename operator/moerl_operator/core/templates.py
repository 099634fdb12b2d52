"""What a pod template may ask of the machine: host paths, privileges, host namespaces, capabilities.

An admin permits them in the node class; everything else about a template is the API server's to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from moerl_operator.api.nodes import NodeClassSpec

Obj = dict[str, Any]

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
# What our own injection may add on nodes with EFA; users get no more by naming it themselves.
_ALWAYS_ALLOWED = ("NET_BIND_SERVICE",)


# The parts of a PodTemplateSpec that our injection reads or extends: {...} an object, [...] a list. The API server
# keeps a template as it is, so a wrong type arrives here; all else the dry run of the rendered child finds.
_CONTAINER: Obj = {
    "env": [{}],
    "volumeMounts": [{}],
    "ports": [{}],
    "resources": {"requests": {}, "limits": {}},
    "securityContext": {"capabilities": {"add": [None]}},
    "args": [None],
}
_ANTI_AFFINITY: Obj = {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}
_SHAPE: Obj = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [{}],
        "tolerations": [{}],
        "nodeSelector": {},
        "securityContext": {},
        "affinity": {"podAntiAffinity": _ANTI_AFFINITY},
    },
}


def misshapen(template: Mapping[str, Any], where: str) -> str | None:
    """The first part of a template that is not of the type of a PodTemplateSpec's, None when there is none."""
    return next(_misshapen(template, _SHAPE, f"{where}.template"), None)


def _misshapen(value: object, shape: object, where: str) -> Iterator[str]:
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            yield f"{where} must be an object"
            return
        for key, inner in shape.items():
            if key in value:
                yield from _misshapen(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} must be a list"
            return
        for index, item in enumerate(value):
            yield from _misshapen(item, shape[0], f"{where}[{index}]")


def check(template: Mapping[str, Any], node_class: NodeClassSpec, class_name: str, where: str) -> str | None:
    """The first thing that the class does not permit, as a message with its place; None when all is well."""
    spec = _object(template.get("spec"))
    for problem in _problems(spec, node_class):
        return f"{where}.template.spec.{problem}, which MoERLNodeClass {class_name} does not permit"
    return None


def _problems(spec: Obj, node_class: NodeClassSpec) -> Iterator[str]:
    if not node_class.allow_privileged:
        for key in _HOST_NAMESPACES:
            if spec.get(key):
                yield f"{key} is true"
        if spec.get("nodeName"):
            yield "nodeName passes the scheduler and the taints of other nodes by"
    for index, volume in enumerate(_list(spec.get("volumes"))):
        path = _object(_object(volume).get("hostPath")).get("path")
        if path is not None and not _permitted(str(path), node_class.permitted_host_paths or []):
            yield f"volumes[{index}] is the hostPath {path}"
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(_list(spec.get(kind))):
            yield from _container(_object(container), f"{kind}[{index}]", node_class)


def _container(container: Obj, where: str, node_class: NodeClassSpec) -> Iterator[str]:
    context = _object(container.get("securityContext"))
    if context.get("privileged") and not node_class.allow_privileged:
        yield f"{where}.securityContext.privileged is true"
    allowed = {*_ALWAYS_ALLOWED, *(node_class.permitted_capabilities or ())}
    for name in _list(_object(context.get("capabilities")).get("add")):
        if str(name).removeprefix("CAP_") not in allowed and not node_class.allow_privileged:
            yield f"{where}.securityContext.capabilities adds {name}"
    if any(_object(p).get("hostPort") for p in _list(container.get("ports"))) and not node_class.allow_privileged:
        yield f"{where}.ports has a hostPort"


def _permitted(path: str, allowed: list[str]) -> bool:
    """Whether a path is one of the permitted folders or below one; `..` never is."""
    wanted = PurePosixPath(path)
    if ".." in wanted.parts:
        return False
    return any(wanted == PurePosixPath(a) or PurePosixPath(a) in wanted.parents for a in allowed)


def _object(value: object) -> Obj:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
