"""The serving roles: Deployments of reward and environment, the buffer's StatefulSet, headless Services."""

from __future__ import annotations

from typing import Any

from moerl_operator.api import names
from moerl_operator.manifests import revision
from moerl_operator.manifests.context import JobContext, RoleContext, job_labels, metadata, role_selector
from moerl_operator.manifests.pods import VOLUME_DATA, pod_template

Obj = dict[str, Any]

_PORTS: dict[str, tuple[tuple[str, int], ...]] = {
    names.TRAINER: (("rendezvous", names.PORT_RENDEZVOUS), ("metrics", names.PORT_AGENT)),
    names.ROLLOUT: (("rendezvous", names.PORT_RENDEZVOUS), ("metrics", names.PORT_AGENT)),
    names.REWARD: (("http", names.PORT_SERVICE),),
    names.ENVIRONMENT: (("http", names.PORT_SERVICE),),
    names.BUFFER: (("redis", names.PORT_REDIS),),
}
# Ranks look each other up before any of them is ready; a client of the buffer waits for it by connecting.
_BEFORE_READY = (names.TRAINER, names.ROLLOUT, names.BUFFER)


def _child_annotations(role: RoleContext) -> dict[str, str]:
    return {names.ANNOTATION_REVISION: role.revision, names.ANNOTATION_NODE_GROUP: role.node_group}


def deployment(role: RoleContext, replicas: int) -> Obj:
    """Deployment of the reward or environment role."""
    name = names.service(role.job.name, role.role)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(role.job, name, labels=role.labels, annotations=_child_annotations(role)),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": role_selector(role.job, role.role)},
            "template": pod_template(role, name),
        },
    }


def buffer(role: RoleContext, replicas: int) -> Obj:
    """StatefulSet of the buffer; OnDelete, because a rolled buffer is a lost one."""
    name = names.service(role.job.name, names.BUFFER)
    storage = role.job.spec.buffer.storage
    spec: Obj = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": role_selector(role.job, names.BUFFER)},
        "template": pod_template(role, name),
    }
    if storage.type == "PVC":
        claim: Obj = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.size}}}
        if storage.storage_class_name:
            claim["storageClassName"] = storage.storage_class_name
        spec["volumeClaimTemplates"] = [{"metadata": {"name": VOLUME_DATA}, "spec": claim}]
        spec["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": "Delete", "whenScaled": "Retain"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(role.job, name, labels=role.labels, annotations=_child_annotations(role)),
        "spec": spec,
    }


def service(job: JobContext, role: str) -> Obj:
    """Headless Service: DNS names of a role's pods."""
    name = names.service(job.name, role)
    annotations = {names.ANNOTATION_REVISION: revision.fixed(f"service/{role}")}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, name, labels=job_labels(job) | {names.LABEL_ROLE: role}, annotations=annotations),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": role in _BEFORE_READY,
            "selector": role_selector(job, role),
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in _PORTS[role]],
        },
    }
