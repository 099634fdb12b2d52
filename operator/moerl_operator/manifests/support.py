"""The objects around the pods: configuration, report, secret, account, rights, network and disruption policies."""

from __future__ import annotations

import json
from typing import Any

from moerl_operator.api import names
from moerl_operator.manifests import revision
from moerl_operator.manifests.context import JobContext, job_labels, metadata, role_selector

Obj = dict[str, Any]

REPORT_KEY = "report.json"
CONFIG_KEY = "job.json"


def config(job: JobContext) -> Obj:
    """ConfigMap that every role pod mounts: the job as the user wrote it."""
    content = {
        "metadata": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
        "spec": dict(job.raw_spec),
    }
    annotations = {names.ANNOTATION_REVISION: revision.whole(job.spec)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.config_map(job.name), annotations=annotations),
        "data": {CONFIG_KEY: json.dumps(content, sort_keys=True, indent=1)},
    }


def report(job: JobContext) -> Obj:
    """ConfigMap that the trainer's agent patches; made empty, so that its account needs no right to create."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.report(job.name), annotations=_fixed("report")),
    }


def secret(job: JobContext) -> Obj:
    """Secret of the buffer; its password is made when it is created, the policy knows no randomness."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata(job, names.buffer_secret(job.name), annotations=_fixed("secret")),
    }


def service_account(job: JobContext) -> Obj:
    """The pods' account. One that the user or the class named may serve other jobs too, so no job owns it."""
    made_for_job = job.service_account == job.name
    meta = metadata(job, job.service_account)
    if not made_for_job:
        meta = {
            "name": job.service_account,
            "namespace": job.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
        }
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False}


def role(job: JobContext) -> Obj:
    """The one right that a pod of the job has: patch the report."""
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [names.report(job.name)],
        "verbs": ["get", "patch"],
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(job, names.report(job.name), annotations=_fixed("role")),
        "rules": [rule],
    }


def role_binding(job: JobContext) -> Obj:
    """Binds the right to the pods' account."""
    annotations = {names.ANNOTATION_REVISION: revision.fixed(f"binding/{job.service_account}")}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, names.report(job.name), annotations=annotations),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": names.report(job.name)},
        "subjects": [{"kind": "ServiceAccount", "name": job.service_account, "namespace": job.namespace}],
    }


def network_policy(job: JobContext) -> Obj:
    """Pods of the job reach each other on every port; anything else reaches only their metrics.

    Egress stays open: DNS, S3 and whatever the user's programs call.
    """
    own = {"matchLabels": {names.LABEL_JOB_UID: job.uid}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, job.name, annotations=_fixed("network")),
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": own}]},
                {"ports": [{"protocol": "TCP", "port": names.PORT_AGENT}]},
            ],
        },
    }


def disruption_budget(job: JobContext, part: str, minimum: int) -> Obj:
    """Budget of the trainer or the buffer. An integer minAvailable, since over Job pods maxUnavailable fails to sync.

    Pods that are not healthy may be evicted, else a crashed one would block the drain of its node.
    """
    annotations = {names.ANNOTATION_REVISION: revision.fixed(f"budget/{part}/{minimum}")}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(
            job,
            names.service(job.name, part),
            labels=job_labels(job) | {names.LABEL_ROLE: part},
            annotations=annotations,
        ),
        "spec": {
            "minAvailable": minimum,
            "selector": {"matchLabels": role_selector(job, part)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _fixed(what: str) -> dict[str, str]:
    return {names.ANNOTATION_REVISION: revision.fixed(what)}
