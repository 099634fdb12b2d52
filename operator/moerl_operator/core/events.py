"""Events: what a person would want to know, told once, when it becomes so.

They come from the difference between the conditions last written and those of this reconcile, so a
restart of the operator tells nothing again.
"""

from __future__ import annotations

from moerl_operator.core import conditions as cond
from moerl_operator.core.conditions import Conditions
from moerl_operator.core.world import Action, CreateNodeGroup, DeleteNodeGroup, PlannedEvent, RetagNodeGroup

# Condition types whose turn to True, or to False, is news; reasons become the event's reason.
_GOOD = (cond.NODES_READY, cond.READY, cond.COMPLETE, cond.TRANSPORT_VERIFIED)
_BAD_WHEN_TRUE = (cond.FAILED, cond.DEGRADED)
_BAD_WHEN_FALSE = (cond.ACCEPTED, cond.TRANSPORT_VERIFIED, cond.PROGRESSING)
# Waiting is no news; only what AWS or the cluster refused is.
_QUIET_REASONS = ("NodesPending", "NodeGroupCreating", "NotObserved", "Suspended")
_MAX_NOTE = 1000  # events.k8s.io/v1 allows 1024


def of_conditions(conditions: Conditions) -> list[PlannedEvent]:
    """Events for what changed since the last status."""
    out = []
    for kind in cond.TYPES:
        status, reason = conditions.status(kind), conditions.reason(kind)
        old = conditions.observed.get(kind, {})
        told = old.get("reason") == reason and not (
            # Another generation that is not accepted is another thing to tell.
            kind == cond.ACCEPTED and old.get("observedGeneration") != conditions.generation
        )
        if old.get("status", "Unknown") == status and (status != "False" or told):
            continue
        message = conditions.message(kind)[:_MAX_NOTE]
        if status == "True" and (kind in _GOOD or kind == cond.ACCEPTED):
            out.append(PlannedEvent("Normal", kind, message or kind))
        elif status == "True" and kind in _BAD_WHEN_TRUE:
            out.append(PlannedEvent("Warning", reason if kind == cond.FAILED else kind, message or kind))
        elif status == "False" and (
            (kind in _BAD_WHEN_FALSE and reason not in _QUIET_REASONS and reason not in ("Finished", "Failed"))
            or (kind == cond.NODES_READY and reason not in _QUIET_REASONS)
        ):
            out.append(PlannedEvent("Warning", reason, message or reason))
        elif kind == cond.SUSPENDED and (status == "True" or old.get("status") == "True"):
            word = "Suspended" if status == "True" else "Resumed"
            out.append(PlannedEvent("Normal", word, message or word))
    return out


def of_actions(actions: list[Action]) -> list[PlannedEvent]:
    """Events for what is about to be done in AWS."""
    out = []
    for action in actions:
        if isinstance(action, CreateNodeGroup):
            kinds = ", ".join(action.spec.instance_types)
            text = f"node group {action.spec.name} ({kinds}, {action.spec.capacity_type}) in {action.spec.zone}"
            out.append(PlannedEvent("Normal", "NodeGroupCreating", text, "CreateNodeGroup"))
        elif isinstance(action, DeleteNodeGroup):
            out.append(PlannedEvent("Normal", "NodeGroupDeleting", f"node group {action.name}", "DeleteNodeGroup"))
        elif isinstance(action, RetagNodeGroup):
            text = f"node group {action.name} now belongs to its class"
            out.append(PlannedEvent("Normal", "NodeGroupRetained", text, "RetainNodeGroup"))
    return out
