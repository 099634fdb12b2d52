"""Attempts: the first one, the next one after a failure, and the point where a slot is given up.

One failure ends one attempt and makes one new one. The old attempt's pods must be gone before the
new one's are made, since two pods of one rank would train and write at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from moerl_operator.api import names
from moerl_operator.api.roles import Backoff, FailurePolicy
from moerl_operator.core import attempts as att
from moerl_operator.core import failures, groups
from moerl_operator.core.attempts import Attempt, Slot, Verdict
from moerl_operator.core.failures import Failure
from moerl_operator.core.idle import is_gone
from moerl_operator.core.topology import Placement
from moerl_operator.core.view import Part, View, condition_of, format_time, parse_time
from moerl_operator.core.world import Action, CreateChild, DeleteChild, PatchChild, PlannedEvent
from moerl_operator.manifests import gangs

# A finished trainer's report may arrive after the Job's own verdict.
REPORT_GRACE = timedelta(seconds=60)
# The Job controller makes pods within a second, unless it may not.
PODS_GRACE = timedelta(seconds=30)


@dataclass(slots=True)
class SlotState:
    """What the status says about a slot, and what to do for it."""

    slot: Slot
    attempt: int = 0
    restarts: int = 0
    ready: int = 0
    size: int = 0
    live: bool = False  # an attempt that has not ended holds nodes
    complete: bool = False
    exhausted: bool = False  # no further attempt: the budget is spent, or a rule says Fail
    fatal: bool = False  # a rule says that this failure ends the job
    failure: Failure | None = None
    failed_attempt: int = 0
    child: str = ""
    waiting: str = ""  # why pods do not run, for people
    waiting_reason: str = ""
    actions: list[Action] = field(default_factory=list)
    events: list[PlannedEvent] = field(default_factory=list)
    requeue: float | None = None

    def wait(self, seconds: float) -> None:
        """Look again after so many seconds."""
        self.requeue = max(seconds, 0.1) if self.requeue is None else min(self.requeue, max(seconds, 0.1))


def policy_of(view: View, part: Part) -> FailurePolicy:
    """The failure policy of a part's role."""
    return view.spec.rollout.failure_policy if part.pool else view.spec.trainer.failure_policy


def advance(view: View, slot: Slot, place: Placement, *, may_start: bool, finished: bool = False) -> SlotState:
    """Bring one slot forward. `finished` says that the trainer's final version is durable."""
    series = att.of_slot(view, slot)
    state = SlotState(slot, size=groups.gang_size(slot.part))
    for old in series[:-1]:
        if not old.job["metadata"].get("deletionTimestamp"):
            state.actions.append(_delete(old))
    if not series:
        number, restarts = _remembered(view, slot)
        state.attempt, state.restarts = number, restarts
        _start(view, state, place, number + 1, may_start)
        return state
    latest = series[-1]
    state.attempt, state.restarts, state.child = latest.number, latest.restarts, latest.name
    verdict = _verdict(view, slot, latest, place, finished=finished)
    if verdict.state == "Running":
        state.live, state.ready = True, latest.ready
        _describe_waiting(view, state, latest)
        soon = att.next_check(view, latest)
        if soon is not None:
            state.wait(soon)
    elif verdict.state == "Complete":
        state.live = state.complete = True
        if not finished and not slot.part.pool:
            state.wait(5)
    elif verdict.state == "Suspended":
        _start(view, state, place, latest.number + 1, may_start)
    else:
        _failed(view, state, place, latest, verdict, may_start)
    return state


def suspend(view: View, slot: Slot) -> SlotState:
    """End the latest attempt because the user suspended the job; its number and budget stay with its Job."""
    series = att.of_slot(view, slot)
    state = SlotState(slot, size=groups.gang_size(slot.part))
    for old in series[:-1]:
        state.actions.append(_delete(old))
    if not series:
        state.attempt, state.restarts = _remembered(view, slot)
        return state
    latest = series[-1]
    state.attempt, state.restarts, state.child = latest.number, latest.restarts, latest.name
    verdict = att.judge(view, latest, "")
    if verdict.state == "Failed" and verdict.failure and not latest.ended:
        state.failure, state.failed_attempt = verdict.failure, latest.number
    if latest.ended != att.SUSPENDED:
        state.actions.append(end(view, latest, att.SUSPENDED))
    return state


def end(view: View, attempt: Attempt, reason: str) -> PatchChild:
    """End an attempt: its Job is suspended, which deletes its pods, and keeps the reason."""
    notes = {names.ANNOTATION_ENDED: reason, names.ANNOTATION_ENDED_AT: format_time(view.now)}
    patch: dict[str, object] = {"metadata": {"annotations": notes}}
    if not _finished(attempt):
        patch["spec"] = {"suspend": True}
    return PatchChild("batch/v1", "Job", attempt.name, patch)


def pods_gone(view: View, slot: Slot) -> bool:
    """Whether no pod of any attempt of this slot can still run."""
    return all(is_gone(view, p) for p in slot.pods(view))


def backoff_seconds(backoff: Backoff, failures_so_far: int) -> float:
    """initial x 2^(failures - 1), capped."""
    return float(min(backoff.initial_seconds * 2 ** min(max(failures_so_far - 1, 0), 30), backoff.max_seconds))


def _verdict(view: View, slot: Slot, latest: Attempt, place: Placement, *, finished: bool) -> Verdict:
    """The attempt's fate, where a Job that is complete is not yet what we mean by it."""
    if finished and not slot.part.pool and condition_of(latest.job, "Complete"):
        return Verdict("Complete")  # the final version is durable, whatever became of the pods
    verdict = att.judge(view, latest, place.group)
    if verdict.state != "Complete":
        return verdict
    done = _completed_at(view, latest)
    if slot.part.pool:
        told = Failure("Application", "RolloutExited", done, "its programs ended before the job did", exit_code=0)
        return Verdict("Failed", told)
    if view.spec.framework.type == "Native" and not finished and view.now >= done + REPORT_GRACE:
        told = Failure(
            "Application", "FinalVersionMissing", done, "the trainer ended without a final version", exit_code=0
        )
        return Verdict("Failed", told)
    return verdict


def _failed(view: View, state: SlotState, place: Placement, latest: Attempt, verdict: Verdict, may_start: bool) -> None:
    """One failure: decide what it means, end what still runs, and start the next attempt when it is time."""
    failure = verdict.failure
    assert failure is not None
    policy = policy_of(view, state.slot.part)
    action = failures.action_for(failure, policy)
    spent = latest.restarts + (1 if action == "Restart" else 0)
    state.failure, state.failed_attempt = failure, latest.number
    if verdict.end:
        state.actions.append(end(view, latest, verdict.end))
    if action == "Fail":
        state.exhausted = state.fatal = True
        return
    if spent > policy.max_restarts:
        state.exhausted = True
        return
    state.restarts = spent
    if verdict.end or not pods_gone(view, state.slot):
        state.wait(5)
        return
    delay = backoff_seconds(policy.backoff, spent if action == "Restart" else 1)
    left = (failure.time + timedelta(seconds=delay) - view.now).total_seconds()
    if left > 0:
        state.wait(left)
        return
    _start(view, state, place, latest.number + 1, may_start)


def _start(view: View, state: SlotState, place: Placement, number: int, may_start: bool) -> None:
    """Make the next attempt, once its nodes are there; waiting for them spends nothing."""
    if not may_start or not place.placed:
        state.waiting_reason, state.waiting = "NodesPending", "waiting for nodes"
        return
    if not pods_gone(view, state.slot):
        state.wait(5)
        return
    context = replace(
        groups.role_context(view, state.slot.part),
        node_selector=place.selector,
        node_group=place.group,
        replica=state.slot.replica,
        attempt=number,
        restarts=state.restarts,
    )
    state.actions.append(CreateChild(gangs.attempt(context)))
    state.live = True
    previous = att.of_slot(view, state.slot)
    if previous:
        state.actions.append(_delete(previous[-1]))
        cause = f" after {state.failure.describe()}" if state.failure else ""
        state.events.append(
            PlannedEvent(
                "Warning" if state.failure else "Normal",
                "AttemptStarted",
                f"{state.slot.words}: attempt {number}{cause}"[:1000],
                "Restart",
            )
        )


def _describe_waiting(view: View, state: SlotState, latest: Attempt) -> None:
    for pod in latest.pods:
        trouble = failures.waiting_trouble(pod)
        if trouble is not None:
            state.waiting_reason, state.waiting = trouble
            return
    if latest.ready < latest.size:
        state.waiting_reason = "PodsPending"
    made = parse_time(latest.job["metadata"].get("creationTimestamp"))
    if not latest.pods and made is not None:
        left = (made + PODS_GRACE - view.now).total_seconds()
        if left > 0:
            state.wait(left)
        else:
            state.waiting_reason = "PodsMissing"
            state.waiting = f"Job {latest.name} has no pods; its events say why (a quota or pod security refuses them)"


def _remembered(view: View, slot: Slot) -> tuple[int, int]:
    """(attempt, restarts) of the trainer from the status, for the case that somebody deleted its Job."""
    if slot.part.pool:
        return 0, 0
    rows = view.status.get("roles") or ()
    line: dict[str, int] = next((r for r in rows if r.get("name") == names.TRAINER), {})
    return int(line.get("attempt") or 0), int(line.get("restarts") or 0)


def _completed_at(view: View, attempt: Attempt) -> datetime:
    return parse_time((attempt.job.get("status") or {}).get("completionTime")) or view.now


def _finished(attempt: Attempt) -> bool:
    return bool(condition_of(attempt.job, "Complete") or condition_of(attempt.job, "Failed"))


def _delete(attempt: Attempt) -> DeleteChild:
    return DeleteChild("batch/v1", "Job", attempt.name, str(attempt.job["metadata"].get("uid", "")))
