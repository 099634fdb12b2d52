"""The end of a job: when it is complete or failed, and what is taken down after that or at deletion.

Nothing is made here. Workloads go first, then node groups, and the finalizer when no AWS object of
the job can be left; each step is planned from what is still there, so it may be interrupted anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import groups, idle, topology, workloads
from moerl_operator.core.conditions import COMPLETE, FAILED, NODES_READY, Conditions
from moerl_operator.core.recovery import SlotState
from moerl_operator.core.view import Part, View, labels_of, parse_time
from moerl_operator.core.world import (
    Action,
    DeleteJob,
    DeleteLaunchTemplate,
    DeleteNodeGroup,
    NodeGroupObservation,
    RetagNodeGroup,
    ScaleNodeGroup,
    SetFinalizer,
)

Obj = dict[str, Any]


@dataclass(slots=True)
class Teardown:
    """What to take down now; `done` when nothing is left that should go."""

    actions: list[Action] = field(default_factory=list)
    requeue: float | None = None
    done: bool = True

    def pending(self, seconds: float | None = None) -> None:
        """Something is still there; look again after so many seconds, or when an event tells."""
        self.done = False
        if seconds is not None:
            self.requeue = seconds if self.requeue is None else min(self.requeue, seconds)


def failure(view: View, slots: list[SlotState]) -> tuple[str, str] | None:
    """(reason, message) when the slots' failures end the job."""
    for state in slots:
        if state.exhausted and state.failure is not None and (state.fatal or not state.slot.part.pool):
            reason = "FailureRule" if state.fatal else "RestartsExhausted"
            text = f"{state.slot.words}, attempt {state.failed_attempt}: {state.failure.describe()}"
            if not state.fatal:
                text += f"; no restart is left after {state.restarts}"
            return reason, text
    for part in view.parts:
        if part.pool is None:
            continue
        lost = [s for s in slots if s.slot.part.key == part.key and s.exhausted]
        if lost and part.pool.wanted - len(lost) < part.pool.needed:
            last = lost[-1].failure
            return "RolloutsBelowMinimum", (
                f"pool {part.key}: {len(lost)} of {part.pool.wanted} replicas have spent their restarts, and "
                f"{part.pool.needed} are needed; {last.describe() if last else ''}"
            )
    return None


def deadline(view: View, conditions: Conditions, start: datetime | None) -> tuple[tuple[str, str] | None, float | None]:
    """((reason, message) of a passed deadline, seconds until the next one)."""
    policy = view.spec.run_policy
    checks: list[tuple[datetime, str, str]] = []
    if start is not None and policy.active_deadline_seconds is not None:
        checks.append(
            (
                start + timedelta(seconds=policy.active_deadline_seconds),
                "DeadlineExceeded",
                f"the job did not end within {policy.active_deadline_seconds} s",
            )
        )
    if start is not None and not conditions.is_true(NODES_READY):
        changed = parse_time(conditions.observed.get(NODES_READY, {}).get("lastTransitionTime")) or start
        if conditions.observed.get(NODES_READY, {}).get("status") != "False":
            changed = view.now
        limit = timedelta(seconds=policy.provisioning_deadline_seconds)
        checks.append(
            (
                max(changed, start) + limit,
                "ProvisioningDeadlineExceeded",
                f"nodes were not ready within {policy.provisioning_deadline_seconds} s: "
                + conditions.message(NODES_READY),
            )
        )
    for when, reason, message in checks:
        if view.now >= when:
            return (reason, message), None
    return None, min(((when - view.now).total_seconds() for when, _, _ in checks), default=None)


def teardown(view: View, *, deleting: bool) -> Teardown:
    """Take down what the end of the job, or its deletion, asks for."""
    out = Teardown()
    released = _released(view, deleting=deleting)
    _workloads(view, out, released)
    if view.snap.aws.error is not None:
        if view.has_finalizer:
            out.pending(topology.POLL_SECONDS)
        return out
    for group in groups.own(view):
        split = groups.split_name(view.uid, group.name)
        part = view.part(split[0]) if split else None
        if released is None or part is None or part.key in {p.key for p in released}:
            _release(view, out, part, group, deleting=deleting)
    kept = {g.name for g in view.snap.aws.node_groups}
    leftover = sorted(name for name in view.snap.aws.launch_templates if name not in kept)
    out.actions += [DeleteLaunchTemplate(name) for name in leftover]
    if leftover:
        out.pending(topology.POLL_SECONDS)
    if view.has_finalizer and not groups.own(view) and not leftover:
        out.actions.append(SetFinalizer(False))
    _hold(view, out)
    return out


def expire(view: View, out: Teardown) -> None:
    """Delete the job itself when its time after the end is over and everything is taken down."""
    ttl = view.spec.run_policy.ttl_seconds_after_finished if view.parsed else None
    ended = parse_time(view.status.get("completionTime"))
    if ttl is None or ended is None:
        return
    left = (ended + timedelta(seconds=ttl) - view.now).total_seconds()
    if left > 0:
        out.requeue = left if out.requeue is None else min(out.requeue, left)
    elif out.done:
        out.actions.append(DeleteJob())


def final_words(view: View) -> tuple[str, str]:
    """(type, message) of the terminal condition that is True."""
    kind = COMPLETE if view.is_true(COMPLETE) else FAILED
    return kind, str((view.condition(kind) or {}).get("message") or "")


def _released(view: View, *, deleting: bool) -> tuple[Part, ...] | None:
    """Parts whose workloads and nodes go; None for all, also those that the spec no longer names."""
    if deleting or view.parsed is None or view.spec.run_policy.cleanup_policy == "Workloads":
        return None
    return tuple(p for p in view.parts if _has_gpus(view, p))


def _has_gpus(view: View, part: Part) -> bool:
    return part.nodes.node_class_name in view.classes and view.facts(part).gpus > 0


def _workloads(view: View, out: Teardown, released: tuple[Part, ...] | None) -> None:
    """Jobs, Deployments and StatefulSets; the rest is inert and goes with the job."""
    keys = None if released is None else {(p.role, p.key if p.pool else "") for p in released}
    found = [
        obj
        for obj in (*view.snap.jobs, *view.snap.deployments, *view.snap.stateful_sets)
        if keys is None or (labels_of(obj).get(names.LABEL_ROLE), labels_of(obj).get(names.LABEL_POOL, "")) in keys
    ]
    out.actions += workloads.delete_actions(found)
    if found:
        out.pending()


def _release(view: View, out: Teardown, part: Part | None, group: NodeGroupObservation, *, deleting: bool) -> None:
    """Give back one group as its part says, after its pods have ended."""
    wish = part.on_finish if part is not None else "Delete"
    if group.status == "DELETING" or not _idle(view, part, group):
        out.pending(topology.POLL_SECONDS)
    elif wish == "Retain" and part is not None and group.status == "ACTIVE" and group.desired:
        out.actions.append(RetagNodeGroup(group.name, group.arn, group.asg_name, _class_tags(view, part, group)))
        out.pending(topology.POLL_SECONDS)
    elif wish == "ScaleToZero" and not deleting and group.status not in ("CREATE_FAILED", "DELETE_FAILED"):
        if group.desired:
            out.actions.append(ScaleNodeGroup(group.name, group.asg_name, 0))
            out.pending(topology.POLL_SECONDS)
    else:
        out.actions.append(DeleteNodeGroup(group.name))
        out.pending(topology.POLL_SECONDS)


def _idle(view: View, part: Part | None, group: NodeGroupObservation) -> bool:
    """Whether no pod of the job can still run on the group; any pod counts when its part is not known."""
    if part is not None:
        return idle.group_is_idle(view, part, group.name)
    return all(idle.is_gone(view, p) for p in view.snap.pods)


def _class_tags(view: View, part: Part, group: NodeGroupObservation) -> dict[str, str]:
    """Tags of a group that its class keeps: no longer of this job, but still of this installation."""
    kept = {key: value for key, value in group.tags.items() if key != names.TAG_JOB}
    return kept | {names.TAG_OWNER: f"class/{part.nodes.node_class_name}"}


def _hold(view: View, out: Teardown) -> None:
    """After a refused AWS call nothing is sent before the control loop's backoff has passed."""
    retry_at = view.snap.aws.retry_at
    aws = (DeleteNodeGroup, DeleteLaunchTemplate, RetagNodeGroup, ScaleNodeGroup)
    if retry_at is None or retry_at <= view.now or not any(isinstance(a, aws) for a in out.actions):
        return
    out.actions = [a for a in out.actions if not isinstance(a, aws)]
    out.requeue = (retry_at - view.now).total_seconds()
