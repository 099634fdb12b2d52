"""Fits an example manifest to this machine, as a value: what differs from EKS is in this file and nowhere else.

The job stays the user's: roles, algorithm and counts are not touched. Changed are the node class and the
instance type (`local` is joined by the real node), and every pod gets the checkout as a read-only mount,
because the small base image holds Python but not this project. Images, paths and the address of AWS are
said once, in the node class.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_operator.api import names

Obj = dict[str, Any]

INSTANCE_TYPE = "local"
NODE_CLASS = "local"
# Where pods see the checkout: a folder that every account may enter, wherever the checkout lies on the host.
MOUNT = "/opt/moerl"
_VOLUME = "checkout"
# Only EKS has what these ask for: Spot markets, placement groups, reservations, zones.
_NOT_LOCAL = ("capacityType", "capacityReservation", "placementGroup", "zones", "nodeSelector", "onFinish")
_SIDECARS = {names.TRAINER: names.CONTAINER_AGENT, names.ROLLOUT: names.CONTAINER_DRIVER}


@dataclass(frozen=True, slots=True)
class Machine:
    """What of this machine goes into the manifests.

    Attributes:
        checkout: root of the checkout, with .venv in it.
        image: the base image in the node's containerd.
        aws_endpoint: URL of the emulator, reachable from pods.
    """

    checkout: Path
    image: str
    aws_endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """For every container: this project's programs, and where AWS answers."""
        folders = ("operator", "runtime", "kernels", "localcluster")
        return {
            "PATH": f"{MOUNT}/.venv/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": ":".join(f"{MOUNT}/{folder}" for folder in folders),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "AWS_ENDPOINT_URL": self.aws_endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    @property
    def volume(self) -> Obj:
        """The checkout as a pod's volume."""
        return {"name": _VOLUME, "hostPath": {"path": str(self.checkout), "type": "Directory"}}

    @property
    def mount(self) -> Obj:
        """The checkout in a container, read-only."""
        return {"name": _VOLUME, "mountPath": MOUNT, "readOnly": True}


def job(example: Mapping[str, Any], machine: Machine, *, namespace: str, model_uri: str | None = None) -> Obj:
    """The example as it runs here.

    Args:
        model_uri: the policy to start from, instead of the example's.
    """
    out: Obj = copy.deepcopy(dict(example))
    out["metadata"]["namespace"] = namespace
    spec: Obj = out["spec"]
    if model_uri:
        spec["model"] = {"uri": model_uri}
    native = spec.get("framework", {}).get("type", "Native") == "Native"
    for role in (role for role in names.ROLES if role in spec):
        template = spec[role].setdefault("template", {})
        _mount_checkout(template.setdefault("spec", {}), machine, sidecar=_SIDECARS.get(role) if native else None)
    for nodes in _nodes(spec):
        for key in _NOT_LOCAL:
            nodes.pop(key, None)
        nodes |= {"nodeClassName": NODE_CLASS, "instanceTypes": [INSTANCE_TYPE]}
    return out


def node_class(example: Mapping[str, Any], machine: Machine, *, namespace: str) -> Obj:
    """The node class that permits what `job` needs, and says what all pods of this machine have in common."""
    out: Obj = copy.deepcopy(dict(example))
    out["metadata"]["name"] = NODE_CLASS
    spec: Obj = out["spec"]
    spec["allowedInstanceTypes"] = [INSTANCE_TYPE]
    spec["allowedNamespaces"] = [namespace]
    spec["permittedHostPaths"] = [str(machine.checkout)]
    environment = [{"name": name, "value": value} for name, value in machine.environment.items()]
    spec["defaults"] = {"image": machine.image, "imagePullPolicy": "Never", "env": environment}
    return out


def _nodes(spec: Obj) -> Iterator[Obj]:
    for role in (role for role in names.ROLES if role in spec):
        parts = spec[role]["pools"] if role == names.ROLLOUT else [spec[role]]
        yield from (part["nodes"] for part in parts)


def _mount_checkout(pod: Obj, machine: Machine, *, sidecar: str | None) -> None:
    containers = pod.setdefault("containers", [])
    if not containers:
        containers.append({"name": names.CONTAINER_MAIN})
    if sidecar:
        # The operator fills in the rest of its sidecar, but mounts are the template's.
        init = pod.setdefault("initContainers", [])
        if not any(container["name"] == sidecar for container in init):
            init.append({"name": sidecar})
    for container in (*containers, *pod.get("initContainers", [])):
        container.pop("resources", None)
        container.pop("image", None)
        container.setdefault("volumeMounts", []).append(machine.mount)
    pod.setdefault("volumes", []).append(machine.volume)
