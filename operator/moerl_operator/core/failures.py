"""What ended a pod or an attempt: the application, or the infrastructure under it.

The difference is money: infrastructure failures (node lost, preemption, eviction, Spot) restart an
attempt without spending the budget that the user gave to failures of the program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from moerl_operator.api import names
from moerl_operator.api.roles import FailurePolicy
from moerl_operator.core import preflight
from moerl_operator.core.view import condition_of, parse_time

Obj = dict[str, Any]
Kind = Literal["Application", "Infrastructure"]
Action = Literal["Restart", "Ignore", "Fail"]

# Exit code of a process that was told to stop (128 + SIGTERM); programs of a job never exit 0 on SIGTERM.
INTERRUPTED = 143
KILLED = 137
# Pod reasons that the kubelet or the node controller give, none of which is the program's doing.
_NODE_REASONS = (
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "Preempting",
    "Outofcpu",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "TopologyAffinityError",
)
# Reasons of ours for ending an attempt: all of them infrastructure.
NODE_LOST = "NodeLost"
POD_DELETED = "PodDeleted"
POD_REPLACED = "PodReplaced"
GROUP_REPLACED = "NodeGroupReplaced"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of an attempt; `time` is when it happened, as the cluster recorded it."""

    kind: Kind
    reason: str
    time: datetime
    message: str = ""
    pod: str = ""
    container: str = ""
    exit_code: int | None = None

    def describe(self) -> str:
        """One sentence for people."""
        where = f"container {self.container} of pod {self.pod}" if self.container else f"pod {self.pod}"
        text = f"{where}: {self.reason}" if self.pod else self.reason
        if self.exit_code is not None:
            text += f", exit code {self.exit_code}"
        return f"{text}: {self.message}" if self.message else text


def action_for(failure: Failure, policy: FailurePolicy) -> Action:
    """The user's first matching rule; rules speak of the program, so the infrastructure is never matched."""
    if failure.kind == "Infrastructure":
        return "Ignore"
    for rule in policy.rules or ():
        if rule.exit_codes is not None and failure.exit_code not in rule.exit_codes:
            continue
        if rule.reason is not None and failure.reason != rule.reason:
            continue
        if rule.message_pattern is not None and not re.search(rule.message_pattern, failure.message):
            continue
        return rule.action
    return "Restart"


def of_attempt(job: Obj, pods: list[Obj], fallback: datetime) -> Failure:
    """Why a Job failed: the pod that its message names, else the pod that ended badly first."""
    verdict = condition_of(job, "FailureTarget") or condition_of(job, "Failed") or {}
    message = str(verdict.get("message") or "")
    when = parse_time(verdict.get("lastTransitionTime")) or fallback
    named = [p for p in pods if re.search(rf"\b{re.escape(p['metadata']['name'])}\b", message)]
    found = [f for f in (of_pod(p, when) for p in named) if f is not None]
    if found:
        return found[0]
    told = _from_message(message, when)
    if told is not None:
        return told
    rest = [f for f in (of_pod(p, when) for p in pods) if f is not None]
    if rest:
        return min(rest, key=lambda f: (f.time, f.pod))
    return Failure("Application", str(verdict.get("reason") or "JobFailed"), when, message[:1024])


def of_pod(pod: Obj, fallback: datetime) -> Failure | None:
    """What ended a pod, or None for a pod that did not end badly."""
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    disruption = condition_of(pod, "DisruptionTarget")
    ended = _terminated(status)
    when = parse_time(ended[1].get("finishedAt")) if ended else None
    if disruption is not None:
        moment = parse_time(disruption.get("lastTransitionTime")) or when or fallback
        return Failure(
            "Infrastructure",
            str(disruption.get("reason") or "Disrupted"),
            moment,
            str(disruption.get("message") or "")[:1024],
            name,
        )
    if status.get("phase") != "Failed":
        return None
    reason = str(status.get("reason") or "")
    if reason in _NODE_REASONS:
        return Failure("Infrastructure", reason, when or fallback, str(status.get("message") or "")[:1024], name)
    if ended is None:
        return Failure("Application", reason or "PodFailed", fallback, str(status.get("message") or "")[:1024], name)
    container, state = ended
    code = int(state.get("exitCode") or 0)
    killed = code == KILLED and state.get("reason") != "OOMKilled"
    if pod["metadata"].get("deletionTimestamp") and (code == INTERRUPTED or killed):
        return Failure(
            "Infrastructure", POD_DELETED, when or fallback, "somebody deleted the pod", name, container, code
        )
    if code == INTERRUPTED:
        return Failure(
            "Infrastructure", "Interrupted", when or fallback, "the program was told to stop", name, container, code
        )
    text = str(state.get("message") or "").strip()
    if container == names.CONTAINER_PREFLIGHT:
        said = preflight.parse(text)
        text = said.words if said is not None else text[-1024:]  # without a verdict it is the end of a log
    return Failure(
        "Application", str(state.get("reason") or "Error"), when or fallback, text[:1024], name, container, code
    )


def waiting_trouble(pod: Obj) -> tuple[str, str] | None:
    """(reason, message) of a container that cannot start or keeps crashing, in words that stay the same."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", f"pod {pod['metadata']['name']}: {condition.get('message') or 'no node fits'}"
    for state in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (state.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        where = f"container {state.get('name')} of pod {pod['metadata']['name']}"
        if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"):
            # The kubelet flips between the first two at every try.
            word = "ImagePullBackOff" if reason == "ErrImagePull" else reason
            return word, f"{where}: image {state.get('image')} cannot be pulled ({word})"
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            return reason, f"{where}: {reason}: {waiting.get('message') or ''}".rstrip(": ")
        if reason == "CrashLoopBackOff":
            last = (state.get("lastState") or {}).get("terminated") or {}
            return reason, f"{where} crashes: {last.get('reason') or 'Error'}, exit code {last.get('exitCode')}"
    return None


def _terminated(status: Obj) -> tuple[str, Obj] | None:
    """(container, state) that ended with an error first; main containers before helpers that end with them."""
    states = [
        (str(s.get("name")), (s.get("state") or {}).get("terminated") or {})
        for s in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    ]
    bad = [(name, state) for name, state in states if state.get("exitCode")]
    # min is stable: of two that ended in the same second the main container comes first.
    return min(bad, key=lambda item: str(item[1].get("finishedAt") or ""), default=None)


def _from_message(message: str, when: datetime) -> Failure | None:
    """Read the Job controller's message when the pod that it names is gone."""
    pod = re.search(r"[Pp]od (?:[^ /]+/)?([^ ]+)", message)
    name = pod.group(1) if pod else ""
    if "DisruptionTarget" in message:
        return Failure("Infrastructure", "DisruptionTarget", when, message[:1024], name)
    code = re.search(r"exit code (\d+)", message)
    if code is None:
        return None
    container = re.search(r"Container ([^ ]+)", message)
    number = int(code.group(1))
    kind: Kind = "Infrastructure" if number == INTERRUPTED else "Application"
    return Failure(
        kind,
        "Interrupted" if number == INTERRUPTED else "Error",
        when,
        "",
        name,
        container.group(1) if container else "",
        number,
    )
