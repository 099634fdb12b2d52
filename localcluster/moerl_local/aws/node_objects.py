"""Pure builders: the Node object that the kubelet of an EKS instance would register, and what a group adds to it."""

from __future__ import annotations

import json
from typing import Any

from . import facts
from .world import REGION, ZONES, Instance, NodeGroup

Obj = dict[str, Any]

FAKE_LABEL = "moerl.dev/fake-node"
KWOK_ANNOTATION = "kwok.x-k8s.io/node"
LOST_ANNOTATION = "fake.moerl.dev/node"
APPLIED_ANNOTATION = "aws.moerl.dev/applied"  # what we wrote of the group's labels and taints, to take it off again
_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


def group_labels(group: NodeGroup) -> dict[str, str]:
    """The labels that a node gets from its group: the user's."""
    return dict(group.request.get("labels", {}))


def group_taints(group: NodeGroup) -> list[Obj]:
    """The group's taints in Kubernetes' spelling."""
    return [
        {"key": taint["key"], "effect": _EFFECTS[taint["effect"]]}
        | ({"value": taint["value"]} if taint.get("value") else {})
        for taint in group.request.get("taints", [])
    ]


def applied(group: NodeGroup) -> str:
    """The value of the annotation that says which labels and taints of the group a node carries."""
    return json.dumps({"labels": group_labels(group), "taints": group_taints(group)}, sort_keys=True)


def place_labels(instance: Instance) -> dict[str, str]:
    """Labels of where an instance is."""
    return {
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": instance.zone,
        "topology.k8s.aws/zone-id": ZONES[instance.zone],
    }


def node(instance: Instance, group: NodeGroup) -> Obj:
    """The Node of an instance as it registers, with the kwok label and annotation that make it a fake one."""
    capacity, allocatable = facts.node_resources(instance.type, group.template_data)
    info = facts.instance_type(instance.type) or {}
    arm = "arm64" in info.get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    template = group.request.get("launchTemplate")
    labels = {
        FAKE_LABEL: "true",
        "kubernetes.io/hostname": instance.node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64" if arm else "amd64",
        "node.kubernetes.io/instance-type": instance.type,
        "eks.amazonaws.com/nodegroup": group.name,
        "eks.amazonaws.com/nodegroup-image": instance.image,
        "eks.amazonaws.com/capacityType": instance.capacity_type,
        **place_labels(instance),
        **group_labels(group),
    }
    if template:
        labels["eks.amazonaws.com/sourceLaunchTemplateId"] = template["id"]
        labels["eks.amazonaws.com/sourceLaunchTemplateVersion"] = template["version"]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": instance.node_name,
            "labels": labels,
            "annotations": {KWOK_ANNOTATION: "fake", APPLIED_ANNOTATION: applied(group)},
        },
        "spec": {"providerID": instance.provider_id, "taints": group_taints(group)},
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": [
                {"type": "InternalIP", "address": instance.address},
                {"type": "InternalDNS", "address": instance.node_name},
                {"type": "Hostname", "address": instance.node_name},
            ],
        },
    }


def regroup(existing: Obj, group: NodeGroup) -> Obj | None:
    """The merge patch that brings a node to its group's present labels and taints; None where it is there already.

    Only what the group put there is taken off: other labels and taints stay. Taints that a person removed are not put
    back as long as the group does not change, as EKS does it.
    """
    annotations = existing["metadata"].get("annotations", {})
    wanted = applied(group)
    if annotations.get(APPLIED_ANNOTATION) == wanted:
        return None
    before = json.loads(annotations.get(APPLIED_ANNOTATION) or '{"labels": {}, "taints": []}')
    labels: dict[str, str | None] = dict.fromkeys(before["labels"])
    labels.update(group_labels(group))
    kept = [taint for taint in existing["spec"].get("taints", []) if taint not in before["taints"]]
    new = [taint for taint in group_taints(group) if taint not in kept]
    return {
        "metadata": {"labels": labels, "annotations": {APPLIED_ANNOTATION: wanted}},
        "spec": {"taints": kept + new},
    }


def evictable(pod: Obj) -> bool:
    """Whether a drain deletes this pod: not those of DaemonSets, static ones, finished ones, those that go already."""
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return False
    return not _stays(pod)


def holds_drain(pod: Obj) -> bool:
    """Whether a drain waits for this pod to be gone."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") and not _stays(pod)


def _stays(pod: Obj) -> bool:
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences", [])
    static = "kubernetes.io/config.mirror" in metadata.get("annotations", {})
    return static or any(owner.get("kind") == "DaemonSet" for owner in owners)
