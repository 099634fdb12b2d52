"""What a builder is told: the job's identity, and the part of it whose pods are rendered.

Builders read nothing else, so an object can be rendered in a test from two small records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moerl_operator.api import names
from moerl_operator.api.job import JobSpec
from moerl_operator.api.nodes import NodeClassSpec
from moerl_operator.core.world import InstanceFacts

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One MoERLJob: `raw_spec` is its spec as the server sent it, `spec` the same parsed."""

    name: str
    namespace: str
    uid: str
    spec: JobSpec
    raw_spec: Mapping[str, Any]
    service_account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """One rendering of a role's pods; `part` is the role, or the pool for rollouts.

    `gang` is the number of pods that run as one (the trainer's nodes, a replica's nodes).
    `node_group` is empty for nodes that exist already; `node_selector` finds them in both cases.
    """

    job: JobContext
    role: str
    part: str
    revision: str
    node_class: NodeClassSpec
    facts: InstanceFacts
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_group: str = ""
    gang: int = 1
    pool: str = ""
    replica: int = 0
    attempt: int = 0
    restarts: int = 0
    template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the child and its pods; selectors use a subset of them."""
        out = job_labels(self.job) | {names.LABEL_ROLE: self.role}
        if self.pool:
            out |= {names.LABEL_POOL: self.pool, names.LABEL_REPLICA: str(self.replica)}
        if self.attempt:
            out[names.LABEL_ATTEMPT] = str(self.attempt)
        return out


def job_labels(job: JobContext) -> dict[str, str]:
    """Labels of every child of a job."""
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_JOB: job.name,
        names.LABEL_JOB_UID: job.uid,
    }


def role_selector(job: JobContext, role: str) -> dict[str, str]:
    """Labels that find a role's pods and no other job's, also after a namesake was made."""
    return {names.LABEL_JOB_UID: job.uid, names.LABEL_ROLE: role}


def metadata(
    job: JobContext, name: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Obj:
    """Metadata of a child: owned by the job, so that the API server's collector takes it with the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": dict(labels if labels is not None else job_labels(job)),
        "annotations": dict(annotations or {}),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": "MoERLJob",
                "name": job.name,
                "uid": job.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
