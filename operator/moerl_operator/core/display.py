"""The printed columns: one word for the state, and short texts for numbers."""

from __future__ import annotations

from typing import Any

from moerl_operator.core import conditions as cond
from moerl_operator.core.conditions import Conditions
from moerl_operator.core.progress import Report
from moerl_operator.core.recovery import SlotState
from moerl_operator.core.view import View

Obj = dict[str, Any]

UNVERIFIED = "unverified"


def state(conditions: Conditions, *, deleting: bool = False, restarting: bool = False) -> str:
    """STATE, derived from the conditions alone, apart from a running deletion or restart."""
    if deleting:
        return "Terminating"
    for kind in cond.FINAL:
        if conditions.is_true(kind):
            return kind
    accepted = conditions.status(cond.ACCEPTED)
    if accepted != "True":
        return "Invalid" if accepted == "False" else "Pending"
    if conditions.is_true(cond.SUSPENDED):
        return "Suspended" if conditions.reason(cond.SUSPENDED) == "Suspended" else "Suspending"
    if restarting:
        return "Recovering"
    if not conditions.is_true(cond.NODES_READY):
        return "Provisioning"
    if not conditions.is_true(cond.TRAINERS_READY):
        return "Finishing" if conditions.reason(cond.TRAINERS_READY) == "Finished" else "Starting"
    if conditions.status(cond.PROGRESSING) == "False":
        return "Stalled"
    if conditions.is_true(cond.DEGRADED):
        return "Degraded"
    return "Running" if conditions.is_true(cond.READY) else "Starting"


def columns(
    view: View,
    conditions: Conditions,
    *,
    slots: list[SlotState],
    report: Report,
    transport: str,
    cost: float | None,
    state_word: str,
) -> Obj:
    """status.display of a job that runs or waits."""
    trainer = [s for s in slots if not s.slot.part.pool]
    rollouts = [s for s in slots if s.slot.part.pool]
    goal = view.spec.algorithm.iterations if view.spec.algorithm else report.iterations
    out: Obj = {
        "state": state_word,
        "trainers": f"{sum(s.ready for s in trainer)}/{sum(s.size for s in trainer)}",
        "rollouts": f"{sum(replica_ready(s) for s in rollouts)}/{len(rollouts)}",
        "transport": transport,
    }
    if report.iteration is not None:
        out["iteration"] = f"{report.iteration}/{goal}" if goal else str(report.iteration)
    if report.reward is not None:
        out["reward"] = report.reward
    if report.samples_per_second is not None:
        out["samplesPerSecond"] = report.samples_per_second
    if cost is not None:
        out["costPerHour"] = dollars(cost)
    return out


def dollars(cost: float) -> str:
    """Dollars per hour, with cents only where they matter."""
    return f"{cost:.0f}" if cost >= 10 else f"{cost:.2f}"


def replica_ready(state: SlotState) -> bool:
    """Whether all pods of a replica are ready."""
    return state.size > 0 and state.ready >= state.size
