"""Indexed Jobs: one per attempt of the trainer gang, one per attempt of each rollout replica.

The rules are those of design section 5: the first pod that ends badly ends the attempt, and the
Job itself never makes another pod, because one failure must cost one attempt and not many.
"""

from __future__ import annotations

from typing import Any

from moerl_operator.api import names
from moerl_operator.manifests.context import RoleContext, metadata
from moerl_operator.manifests.pods import pod_template

Obj = dict[str, Any]


def attempt_name(role: RoleContext) -> str:
    """Name of the Job of this attempt."""
    if role.role == names.TRAINER:
        return names.trainer_attempt(role.job.name, role.attempt)
    return names.rollout_attempt(role.job.name, role.pool, role.replica, role.attempt)


def attempt(role: RoleContext) -> Obj:
    """The Job of one attempt; `restarts` is the budget spent so far and travels with it."""
    name = attempt_name(role)
    annotations = {
        names.ANNOTATION_REVISION: role.revision,
        names.ANNOTATION_RESTARTS: str(role.restarts),
        names.ANNOTATION_NODE_GROUP: role.node_group,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(role.job, name, labels=role.labels, annotations=annotations),
        "spec": {
            "completionMode": "Indexed",
            "completions": role.gang,
            "parallelism": role.gang,
            "backoffLimit": 0,
            # A pod that is only terminating is not replaced: two pods of one rank must never run.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    # First, so that the Job's message says that the pod was disrupted and not what it exited with.
                    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
                ]
            },
            "template": pod_template(role, name),
        },
    }
