"""Conditions of the roles, from the pods that are there: readiness is never remembered, only observed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import attempts as att
from moerl_operator.core import conditions as cond
from moerl_operator.core import display, failures, topology, workloads
from moerl_operator.core.conditions import Conditions
from moerl_operator.core.progress import Report
from moerl_operator.core.recovery import SlotState
from moerl_operator.core.topology import Topology
from moerl_operator.core.view import Part, View, parse_time

Obj = dict[str, Any]


def nodes(view: View, conditions: Conditions, topo: Topology) -> None:
    """NodesReady: every part has the nodes it needs; else why the first one has not, in AWS's own words."""
    waiting = [p for p in topo.placements.values() if not p.usable]
    error = view.snap.aws.error or view.snap.aws.refused
    if not waiting:
        conditions.set(cond.NODES_READY, True, "NodesReady", "all nodes are ready")
        return
    if error is not None and any(p.part.managed for p in waiting):
        conditions.set(cond.NODES_READY, False, *topology.refusal(error))
        return
    first = waiting[0]
    reason = first.reason or "NodesPending"
    conditions.set(cond.NODES_READY, False, reason, "; ".join(p.message for p in waiting if p.message))


def trainers(conditions: Conditions, state: SlotState) -> None:
    """TrainersReady: the whole gang runs."""
    if state.complete:
        conditions.set(cond.TRAINERS_READY, False, "Finished", "the trainer's programs have ended")
    elif state.failure is not None:
        text = f"attempt {state.failed_attempt} failed: {state.failure.describe()}"
        conditions.set(cond.TRAINERS_READY, False, state.failure.reason, text)
    elif state.live and display.replica_ready(state):
        conditions.set(cond.TRAINERS_READY, True, "PodsReady", f"{state.ready} of {state.size} pods are ready")
    else:
        text = state.waiting or f"{state.ready} of {state.size} pods are ready"
        conditions.set(cond.TRAINERS_READY, False, state.waiting_reason or "PodsPending", text)


def rollouts(view: View, conditions: Conditions, slots: list[SlotState]) -> None:
    """RolloutsReady: every pool has the replicas that it needs."""
    short = []
    for part in view.parts:
        if part.pool is None:
            continue
        own = [s for s in slots if s.slot.part.key == part.key]
        ready = sum(display.replica_ready(s) for s in own)
        if ready < part.pool.needed:
            short.append((part, own, ready))
    if not short:
        conditions.set(cond.ROLLOUTS_READY, True, "ReplicasReady", "every pool has the replicas that it needs")
        return
    part, own, ready = short[0]
    text = f"pool {part.key}: {ready} replicas are ready, {part.pool.needed if part.pool else 0} are needed"
    bad = next((s for s in own if s.failure is not None), None)
    stuck = next((s for s in own if s.waiting_reason not in ("", "PodsPending", "NodesPending")), None)
    if bad is not None and bad.failure is not None:
        words = f"; replica {bad.slot.replica}, attempt {bad.failed_attempt}: {bad.failure.describe()}"
        conditions.set(cond.ROLLOUTS_READY, False, bad.failure.reason, text + words)
    elif stuck is not None:
        conditions.set(cond.ROLLOUTS_READY, False, stuck.waiting_reason, f"{text}; {stuck.waiting}")
    else:
        waiting_for_nodes = any(s.waiting_reason == "NodesPending" for s in own)
        conditions.set(cond.ROLLOUTS_READY, False, "NodesPending" if waiting_for_nodes else "PodsPending", text)


def buffer(view: View, conditions: Conditions) -> None:
    """BufferHealthy: its pod is ready."""
    pods = view.pods_of_role(names.BUFFER)
    if any(att.pod_ready(p) for p in pods):
        conditions.set(cond.BUFFER_HEALTHY, True, "PodReady", "the buffer's pod is ready")
        return
    trouble = first_trouble(pods)
    if trouble is not None:
        conditions.set(cond.BUFFER_HEALTHY, False, *trouble)
    else:
        conditions.set(cond.BUFFER_HEALTHY, False, "PodsPending", "the buffer's pod is not ready")


def services_ready(view: View, part: Part) -> int:
    """Ready pods of reward or environment."""
    return sum(att.pod_ready(p) for p in view.pods_of_role(part.role))


def first_trouble(pods: list[Obj]) -> tuple[str, str] | None:
    """(reason, message) of the first pod that cannot start, keeps crashing or failed."""
    for pod in sorted(pods, key=lambda p: str(p["metadata"]["name"])):
        trouble = failures.waiting_trouble(pod)
        if trouble is not None:
            return trouble
    return None


def degraded(view: View, conditions: Conditions, slots: list[SlotState]) -> None:
    """Degraded: the job runs, but with something broken that a person may want to know about."""
    found: list[tuple[str, str]] = []
    if view.snap.foreign:
        found.append(("NameTaken", f"objects of another owner stand in the way: {', '.join(view.snap.foreign[:5])}"))
    for state in slots:
        if state.failure is not None:
            reason = "ReplicaFailed" if state.slot.part.pool else "TrainerFailed"
            found.append((reason, f"{state.slot.words}: {state.failure.describe()}"))
        elif state.waiting_reason not in ("", "PodsPending", "NodesPending"):
            found.append((state.waiting_reason, f"{state.slot.words}: {state.waiting}"))
    for part in view.parts:
        if part.role in (names.REWARD, names.ENVIRONMENT):
            trouble = first_trouble(view.pods_of_role(part.role))
            wanted = workloads.replicas_of(view, part)
            ready = services_ready(view, part)
            if trouble is not None:
                found.append((trouble[0], f"{part.role}: {trouble[1]}"))
            elif ready < wanted and conditions.observed.get(cond.READY, {}).get("status") == "True":
                found.append(("PodsNotReady", f"{part.role}: {ready} of {wanted} pods are ready"))
    error = view.snap.aws.error or view.snap.aws.refused
    if error is not None and conditions.is_true(cond.NODES_READY):
        found.append(topology.refusal(error))
    if conditions.status(cond.TRANSPORT_VERIFIED) == "False":
        found.append(("TransportMismatch", conditions.message(cond.TRANSPORT_VERIFIED)))
    if found:
        conditions.set(cond.DEGRADED, True, found[0][0], "; ".join(text for _, text in found[:5]))
    else:
        conditions.set(cond.DEGRADED, False, "AsExpected", "")


def progress(view: View, conditions: Conditions, report: Report, started: str | None) -> float | None:
    """Progressing; returns the seconds until it would be called stalled."""
    limit = timedelta(seconds=view.spec.run_policy.progress_deadline_seconds)
    since = parse_time(conditions.observed.get(cond.TRAINERS_READY, {}).get("lastTransitionTime"))
    latest = max((t for t in (report.last_progress, since, parse_time(started)) if t is not None), default=None)
    ready = conditions.is_true(cond.TRAINERS_READY)
    if ready and latest is not None and view.now >= latest + limit:
        text = f"no new iteration for {int(limit.total_seconds())} s"
        conditions.set(cond.PROGRESSING, False, "ProgressDeadlineExceeded", text)
        return None
    moving = report.iteration is not None and ready
    conditions.set(cond.PROGRESSING, True, "Iterating" if moving else "Starting", "")
    return (latest + limit - view.now).total_seconds() if ready and latest is not None else None


def weights(conditions: Conditions, report: Report) -> None:
    """WeightPathReady: a version was published; nothing else proves it."""
    if report.policy_version:
        conditions.set(cond.WEIGHT_PATH_READY, True, "VersionPublished", "")
    else:
        conditions.set(cond.WEIGHT_PATH_READY, None, "NotReported", "no policy version was published yet")


def ready(view: View, conditions: Conditions) -> None:
    """Ready: all of the above."""
    missing = [
        kind
        for kind in (cond.NODES_READY, cond.TRAINERS_READY, cond.ROLLOUTS_READY, cond.BUFFER_HEALTHY)
        if not conditions.is_true(kind)
    ]
    for part in view.parts:
        if part.role in (names.REWARD, names.ENVIRONMENT) and services_ready(view, part) == 0:
            missing.append(part.role)
    if missing:
        conditions.set(cond.READY, False, "NotReady", f"waiting for {', '.join(missing)}")
    else:
        conditions.set(cond.READY, True, "Ready", "all roles are ready")


def rows(view: View, slots: list[SlotState], *, suspended: bool) -> list[Obj]:
    """status.roles."""
    out = []
    for part in view.parts:
        own = [s for s in slots if s.slot.part.key == part.key]
        line: Obj = {"name": part.key, "role": part.role, "failed": 0, "attempt": 0, "restarts": 0}
        if part.role == names.TRAINER:
            line |= {
                "desired": part.count,
                "ready": own[0].ready,
                "attempt": own[0].attempt,
                "restarts": own[0].restarts,
                "failed": int(own[0].exhausted),
            }
        elif part.pool:
            line |= {
                "desired": part.pool.wanted,
                "ready": sum(display.replica_ready(s) for s in own),
                "failed": sum(s.exhausted for s in own),
                "restarts": sum(s.restarts for s in own),
            }
        else:
            line |= {"desired": workloads.replicas_of(view, part), "ready": services_ready(view, part)}
        if suspended:
            line["desired"] = 0
        message = _row_message(view, part, own)
        if message and not suspended:
            line["message"] = message[:1024]
        out.append(line)
    return out


def _row_message(view: View, part: Part, own: list[SlotState]) -> str:
    for state in own:
        if state.failure is not None:
            return state.failure.describe()
        if state.waiting:
            return state.waiting
    trouble = None if own else first_trouble(view.pods_of_role(part.role))
    return trouble[1] if trouble else ""
