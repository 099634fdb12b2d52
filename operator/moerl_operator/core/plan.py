"""The policy's one entry: look at the world, say what should be there.

`plan` is a pure function of the Snapshot. Its stages, in order: deletion, a job that has ended, a
spec that is not accepted, a suspended job, a running one. Each stage lives in a file of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import (
    completion,
    cost,
    display,
    events,
    health,
    inventory,
    progress,
    recovery,
    topology,
    transport,
    validate,
    workloads,
)
from moerl_operator.core import conditions as cond
from moerl_operator.core.attempts import Slot
from moerl_operator.core.conditions import Conditions
from moerl_operator.core.idle import is_gone
from moerl_operator.core.progress import Report
from moerl_operator.core.recovery import SlotState
from moerl_operator.core.topology import Placement, Topology
from moerl_operator.core.view import View, format_time, open_view, parse_time
from moerl_operator.core.world import Action, DeleteChild, Plan, PlannedEvent, SetFinalizer, Snapshot

Obj = dict[str, Any]


def plan(snapshot: Snapshot) -> Plan:
    """What to do now, and the status to write; equal snapshots give equal plans."""
    view = open_view(snapshot)
    observed = {str(c.get("type")): c for c in view.status.get("conditions") or ()}
    conditions = Conditions(observed, view.generation, view.now)
    if view.deleting:
        return _delete(view, conditions)
    if view.is_true(cond.COMPLETE) or view.is_true(cond.FAILED):
        return _finish(view, conditions)
    last = view.condition(cond.ACCEPTED) or {}
    accepted = last.get("status") == "True" and last.get("observedGeneration") == view.generation
    problem = validate.check(view, accepted=accepted)
    if problem is not None:
        return _refuse(view, conditions, problem)
    if not accepted:
        waiting = _accept(view, conditions)
        if waiting is not None:
            return waiting
    conditions.set(cond.ACCEPTED, True, "Valid", "")
    conditions.set(cond.QUOTA_RESERVED, True, "NotQueued", "the job waits in no queue")
    return _Run(view, conditions).plan()


def _refuse(view: View, conditions: Conditions, problem: str) -> Plan:
    """A generation that is not accepted: nothing is touched, what runs goes on."""
    conditions.set(cond.ACCEPTED, False, "InvalidSpec", problem)
    status = dict(view.status) | _head(view, conditions)
    status["display"] = dict(view.status.get("display") or {}) | {"state": display.state(conditions)}
    return _written(view, conditions, status)


def _accept(view: View, conditions: Conditions) -> Plan | None:
    """Let the server validate every child before the first one is made; None when it has done so."""
    unknown = validate.unknown_types(view)
    if unknown and view.snap.aws.error is not None:
        reason, message = topology.refusal(view.snap.aws.error)
        conditions.set(cond.ACCEPTED, None, "AwsUnavailable", f"cannot look up {', '.join(unknown)} yet")
        conditions.set(cond.NODES_READY, False, reason, message)
        return _waiting(view, conditions, requeue=topology.POLL_SECONDS)
    if view.snap.dry_run_error is not None:
        return _refuse(view, conditions, view.snap.dry_run_error)
    if view.snap.dry_run_done:
        return None
    topo = topology.arrange(view, suspended=view.spec.suspend)
    conditions.set(cond.ACCEPTED, None, "Validating", "")
    waiting = _waiting(view, conditions, requeue=None)
    return Plan(status=waiting.status, dry_run=workloads.dry_run(view, topo))


def _waiting(view: View, conditions: Conditions, *, requeue: float | None) -> Plan:
    status = dict(view.status) | _head(view, conditions)
    status["display"] = dict(view.status.get("display") or {}) | {"state": display.state(conditions)}
    return _written(view, conditions, status, requeue=requeue)


def _delete(view: View, conditions: Conditions) -> Plan:
    """Somebody deleted the job: take everything down, then let it go."""
    down = completion.teardown(view, deleting=True)
    if any(isinstance(a, SetFinalizer) for a in down.actions):
        return Plan(actions=tuple(down.actions), requeue_after=down.requeue)
    _tell_aws(view, conditions)
    status = dict(view.status) | _head(view, conditions) | _groups_now(view)
    status["display"] = dict(view.status.get("display") or {}) | {"state": display.state(conditions, deleting=True)}
    return _written(view, conditions, status, actions=down.actions, requeue=down.requeue)


def _finish(view: View, conditions: Conditions) -> Plan:
    """A job that has ended: nothing is ever made again."""
    down = completion.teardown(view, deleting=False)
    completion.expire(view, down)
    kind, message = completion.final_words(view)
    word = "Finished" if kind == cond.COMPLETE else "Failed"
    for other in (cond.READY, cond.PROGRESSING):
        conditions.set(other, False, word, message)
    status = dict(view.status) | _head(view, conditions) | _groups_now(view)
    dollars = cost.per_hour(view)
    shown = dict(view.status.get("display") or {}) | {"state": display.state(conditions)}
    shown.pop("costPerHour", None)
    status.pop("costPerHourUsd", None)
    if dollars is not None:
        shown["costPerHour"], status["costPerHourUsd"] = display.dollars(dollars), f"{dollars:.2f}"
    status["display"] = shown
    return _written(view, conditions, status, actions=down.actions, requeue=down.requeue)


class _Run:
    """One reconcile of an accepted job that is running or suspended."""

    def __init__(self, view: View, conditions: Conditions) -> None:
        self.view = view
        self.conditions = conditions
        self.suspended = view.spec.suspend
        self.report: Report = progress.read(view)
        self.topo: Topology = topology.arrange(view, suspended=self.suspended)
        self.slots: list[SlotState] = []
        self.actions: list[Action] = []
        self.requeue: list[float] = [] if self.topo.requeue is None else [self.topo.requeue]
        self.start: datetime | None = None if self.suspended else (parse_time(view.status.get("startTime")) or view.now)

    def plan(self) -> Plan:
        view, conditions = self.view, self.conditions
        self._advance()
        self._judge()
        ended = None if self.suspended else self._ended()
        if ended is None:
            for kind in cond.FINAL:
                conditions.set(kind, False, "NotFinished", "")
            self._act()
        else:
            kind, reason, message = ended
            conditions.set(kind, True, reason, message)
            other = cond.FAILED if kind == cond.COMPLETE else cond.COMPLETE
            conditions.set(other, False, reason, "")
            self.actions, self.requeue = [], [0.1]
        # A refused call is told by its condition, not by announcing the same attempt again.
        told: list[PlannedEvent] = events.of_actions(self.actions) if view.snap.aws.refused is None else []
        for state in self.slots if ended is None else ():
            told += state.events
        return _written(
            view,
            conditions,
            self._status(ended is not None),
            actions=self.actions,
            requeue=min(self.requeue, default=None),
            more_events=told,
        )

    # --- slots -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        view, topo = self.view, self.topo
        blocked = bool(view.snap.foreign)
        for part in view.parts:
            if part.role not in (names.TRAINER, names.ROLLOUT):
                continue
            slots = [Slot(part, i) for i in range(part.pool.wanted)] if part.pool else [Slot(part)]
            place = topo.placements[part.key]
            if self.suspended:
                self.slots += [recovery.suspend(view, slot) for slot in slots]
                continue
            states = [recovery.advance(view, s, place, may_start=False, finished=self._final) for s in slots]
            free = 0 if blocked else _startable(place) - sum(s.live for s in states)
            for index, state in enumerate(states):
                if free > 0 and not state.live:
                    states[index] = recovery.advance(view, state.slot, place, may_start=True, finished=self._final)
                    free -= states[index].live
            self.slots += states
        self.requeue += [s.requeue for s in self.slots if s.requeue is not None]

    @property
    def _final(self) -> bool:
        return self.report.final_marker is not None

    def _act(self) -> None:
        """Gather the actions in their order.

        What pods mount, nodes, gangs, servers, what no pod waits for; scaled-down replicas last.
        """
        view, mine = self.view, not self.view.snap.foreign
        late = workloads.support_actions(view, late=True) if mine else []
        if mine:
            self.actions += workloads.support_actions(view, late=False)
        if view.snap.jobs:
            # A trainer that runs needs its rights, even if another gang or a server is refused for ever after.
            self.actions += late
        self.actions += self.topo.actions
        # New attempts before old ones are deleted: the number and the budget live with the children.
        steps = [action for state in self.slots for action in state.actions]
        self.actions += [a for a in steps if not isinstance(a, DeleteChild)]
        if mine:
            self.actions += workloads.server_actions(view, self.topo, suspended=self.suspended)
        if not view.snap.jobs:
            self.actions += late
        self.actions += [a for a in steps if isinstance(a, DeleteChild)]
        self.actions += workloads.delete_actions(_surplus(view))
        if view.snap.foreign:
            self.requeue.append(5.0)

    # --- judgement -------------------------------------------------------------------------------

    def _judge(self) -> None:
        view, conditions = self.view, self.conditions
        health.nodes(view, conditions, self.topo)
        self.transport = transport.judge(view, conditions, self.report, self.topo)
        health.weights(conditions, self.report)
        if self.suspended:
            self._judge_suspended()
            return
        conditions.set(cond.SUSPENDED, False, "NotSuspended", "")
        health.trainers(conditions, self.slots[0])
        health.rollouts(view, conditions, self.slots)
        health.buffer(view, conditions)
        left = health.progress(view, conditions, self.report, format_time(self.start) if self.start else None)
        if left is not None:
            self.requeue.append(max(left, 0.1))
        health.degraded(view, conditions, self.slots)
        health.ready(view, conditions)

    def _judge_suspended(self) -> None:
        conditions = self.conditions
        stopped = all(is_gone(self.view, p) for p in self.view.snap.pods)
        aws = self.view.snap.aws
        given_back = aws.error is None and not any(g.desired or g.in_service or g.pending for g in aws.node_groups)
        word = "Suspended" if stopped and given_back else "Suspending"
        text = "" if stopped and given_back else "pods are ending and nodes are given back"
        conditions.set(cond.SUSPENDED, True, word, text)
        for kind in (
            cond.NODES_READY,
            cond.TRAINERS_READY,
            cond.ROLLOUTS_READY,
            cond.BUFFER_HEALTHY,
            cond.READY,
            cond.PROGRESSING,
        ):
            conditions.set(kind, False, "Suspended", "")
        conditions.set(cond.DEGRADED, False, "AsExpected", "")

    def _ended(self) -> tuple[str, str, str] | None:
        """(condition, reason, message) when the job ends now."""
        view, trainer = self.view, self.slots[0]
        if trainer.complete and (self._final or view.spec.framework.type == "Custom"):
            where = f"the final policy is at {self.report.final_uri}" if self.report.final_uri else "the trainer ended"
            return cond.COMPLETE, "TrainingFinished", where
        # Before the slots' failures: it is the cause of the pods that its preflight let fail.
        mismatch = self.conditions.status(cond.TRANSPORT_VERIFIED) == "False"
        if mismatch and view.spec.communication.expert_parallel.on_mismatch == "Fail":
            return cond.FAILED, "TransportMismatch", self.conditions.message(cond.TRANSPORT_VERIFIED)
        lost = completion.failure(view, self.slots)
        if lost is not None:
            return cond.FAILED, *lost
        passed, left = completion.deadline(view, self.conditions, self.start)
        if left is not None:
            self.requeue.append(max(left, 0.1))
        return (cond.FAILED, *passed) if passed is not None else None

    # --- status ----------------------------------------------------------------------------------

    def _status(self, ended: bool) -> Obj:
        view, report = self.view, self.report
        dollars = cost.per_hour(view)
        restarting = any(not s.slot.part.pool and s.failure is not None for s in self.slots)
        word = display.state(self.conditions, restarting=restarting)
        status: Obj = _head(view, self.conditions)
        status |= {
            "roles": health.rows(view, self.slots, suspended=self.suspended),
            "nodeGroups": self.topo.rows,
            "transport": self.transport,
            "restarts": max(sum(max(s.attempt - 1, 0) for s in self.slots), int(view.status.get("restarts") or 0)),
            "display": display.columns(
                view,
                self.conditions,
                slots=self.slots,
                report=report,
                cost=dollars,
                state_word=word,
                transport=transport.word(view, self.topo, self.transport),
            ),
        }
        optional: Obj = {
            "policyVersion": report.policy_version,
            "iteration": report.iteration,
            "throughput": _throughput(report),
            "costPerHourUsd": None if dollars is None else f"{dollars:.2f}",
            "lastFailure": _last_failure(view, self.slots),
            "finalPolicy": report.final_uri,
            "startTime": format_time(self.start) if self.start else None,
            "completionTime": format_time(view.now) if ended else None,
            "lastProgressTime": format_time(report.last_progress) if report.last_progress else None,
            "resolvedAmi": self.topo.resolved_ami or view.status.get("resolvedAmi"),
        }
        return status | {key: value for key, value in optional.items() if value is not None}


def _startable(place: Placement) -> int:
    """How many gangs of a part its ready nodes carry: all or nothing for the trainer, in proportion for a pool."""
    pool = place.part.pool
    if pool is None:
        return 1 if place.complete else 0
    return pool.wanted * place.ready // place.part.count if place.part.count else 0


def _surplus(view: View) -> list[Obj]:
    """Jobs of replicas and pools that the spec no longer has."""
    known = {(part.key, str(i)) for part in view.parts if part.pool for i in range(part.pool.wanted)}
    out = []
    for job in view.snap.jobs:
        have = job["metadata"].get("labels") or {}
        if have.get(names.LABEL_ROLE) != names.ROLLOUT:
            continue
        if (have.get(names.LABEL_POOL, ""), have.get(names.LABEL_REPLICA, "")) not in known:
            out.append(job)
    return out


def _last_failure(view: View, slots: list[SlotState]) -> Obj | None:
    """The latest failure of any slot, else the one that the status remembers."""
    old: Obj | None = view.status.get("lastFailure")
    found = [s for s in slots if s.failure is not None]
    if not found:
        return old
    state = max(found, key=lambda s: (s.failure.time if s.failure else view.now, s.child))
    failure = state.failure
    assert failure is not None
    before = parse_time(old.get("time")) if old else None
    if before is not None and before > failure.time:
        return old
    if old is not None and (old.get("child"), old.get("attempt")) == (state.child, state.failed_attempt):
        return old  # one failure is told once, in the words in which it was first seen
    out: Obj = {
        "role": state.slot.part.role,
        "child": state.child,
        "attempt": state.failed_attempt,
        "kind": failure.kind,
        "reason": cond.reason_word(failure.reason),
        "message": failure.message,
        "time": format_time(failure.time),
    }
    if failure.pod:
        out["pod"] = failure.pod
    if failure.container:
        out["container"] = failure.container
    if failure.exit_code is not None:
        out["exitCode"] = failure.exit_code
    return out


def _throughput(report: Report) -> Obj | None:
    out = {"samplesPerSecond": report.samples_per_second, "tokensPerSecond": report.tokens_per_second}
    return {key: value for key, value in out.items() if value is not None} or None


def _tell_aws(view: View, conditions: Conditions) -> None:
    error = view.snap.aws.error or view.snap.aws.refused
    if error is not None:
        conditions.set(cond.NODES_READY, False, *topology.refusal(error))


def _groups_now(view: View) -> Obj:
    """status.nodeGroups of a job that is being taken down."""
    if view.parsed is None or view.snap.aws.error is not None:
        return {}
    return {"nodeGroups": inventory.all_rows(view)}


def _head(view: View, conditions: Conditions) -> Obj:
    return {"observedGeneration": view.generation, "conditions": conditions}


def _written(
    view: View,
    conditions: Conditions,
    status: Obj,
    *,
    actions: list[Action] | None = None,
    requeue: float | None = None,
    more_events: list[PlannedEvent] | None = None,
) -> Plan:
    """The plan with its conditions rendered last, after every stage has spoken."""
    status = status | {"conditions": conditions.render()}
    told = events.of_conditions(conditions) + (more_events or [])
    return Plan(actions=tuple(actions or ()), status=status, events=tuple(told), requeue_after=requeue)
