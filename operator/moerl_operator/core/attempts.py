"""The attempts of one gang, and what has become of the latest.

A *slot* is what attempts follow each other in: the trainer, or one replica of a pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from moerl_operator.api import names
from moerl_operator.core import failures
from moerl_operator.core.failures import Failure
from moerl_operator.core.idle import is_terminal
from moerl_operator.core.view import Part, View, annotations_of, condition_of, labels_of, parse_time

Obj = dict[str, Any]

# Kubernetes' own toleration of a dead node is 300 s, in which a gang would hang at its next collective.
NODE_GRACE = timedelta(seconds=30)
SUSPENDED = "Suspended"  # value of the annotation `ended` for an attempt that the user's suspend stopped

State = Literal["Running", "Complete", "Failed", "Suspended"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The trainer (replica 0), or one replica of a pool."""

    part: Part
    replica: int = 0

    @property
    def words(self) -> str:
        """How people call it."""
        return f"{self.part.key} replica {self.replica}" if self.part.pool else self.part.key

    def jobs(self, view: View) -> list[Obj]:
        """Its Jobs, by their labels."""
        return view.jobs_of_slot(*self._key)

    def pods(self, view: View) -> list[Obj]:
        """Its pods, of whatever attempt."""
        return view.pods_of_slot(*self._key)

    @property
    def _key(self) -> tuple[str, str, str]:
        return (self.part.role, self.part.key, str(self.replica)) if self.part.pool else (self.part.role, "", "")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt's Job with its pods."""

    job: Obj
    pods: tuple[Obj, ...]

    @property
    def name(self) -> str:
        """Name of the Job."""
        return str(self.job["metadata"]["name"])

    @property
    def number(self) -> int:
        """Restart number, from 1."""
        return int(labels_of(self.job).get(names.LABEL_ATTEMPT) or 0)

    @property
    def restarts(self) -> int:
        """Budget spent when it was made."""
        text = annotations_of(self.job).get(names.ANNOTATION_RESTARTS, "0")
        return int(text) if text.isdigit() else 0

    @property
    def ended(self) -> str:
        """Why the operator ended it, empty when it did not."""
        return annotations_of(self.job).get(names.ANNOTATION_ENDED, "")

    @property
    def group(self) -> str:
        """Node group that it was rendered for."""
        return annotations_of(self.job).get(names.ANNOTATION_NODE_GROUP, "")

    @property
    def size(self) -> int:
        """Pods of the gang."""
        return int((self.job.get("spec") or {}).get("completions") or 1)

    @property
    def ready(self) -> int:
        """Pods that are Ready and stay."""
        return sum(pod_ready(p) for p in self.pods)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What has become of an attempt. `end` is set when the operator has to end it, with the reason to write."""

    state: State
    failure: Failure | None = None
    end: str = ""


def pod_ready(pod: Obj) -> bool:
    """Whether a pod is Ready and nobody deleted it."""
    return condition_of(pod, "Ready") is not None and not pod["metadata"].get("deletionTimestamp")


def of_slot(view: View, slot: Slot) -> list[Attempt]:
    """Attempts of a slot, oldest first; Jobs that somebody is deleting count, because their pods may live."""
    found = [Attempt(job, tuple(view.pods_of(job))) for job in slot.jobs(view)]
    return sorted(found, key=lambda a: a.number)


def judge(view: View, attempt: Attempt, group: str) -> Verdict:
    """What has become of an attempt; `group` is the node group in which its part is placed now."""
    if attempt.ended == SUSPENDED:
        return Verdict("Suspended")
    if attempt.ended:
        return Verdict("Failed", _ended_by_us(view, attempt))
    if condition_of(attempt.job, "FailureTarget") or condition_of(attempt.job, "Failed"):
        return Verdict("Failed", failures.of_attempt(attempt.job, list(attempt.pods), view.now))
    vanished = _vanished(attempt)
    if vanished:
        told = Failure("Infrastructure", failures.POD_DELETED, view.now, "somebody deleted the pod", vanished)
        return Verdict("Failed", told, end=failures.POD_DELETED)
    if condition_of(attempt.job, "Complete") or condition_of(attempt.job, "SuccessCriteriaMet"):
        return Verdict("Complete")
    if attempt.job["metadata"].get("deletionTimestamp"):
        return Verdict("Failed", Failure("Infrastructure", "JobDeleted", view.now, "somebody deleted the Job"))
    # The Job controller deletes the other pods before it says why: their deletion is then no failure of its own.
    explained = any((p.get("status") or {}).get("phase") == "Failed" for p in attempt.pods)
    for pod in attempt.pods:
        found = _broken(view, pod, explained=explained)
        if found is not None:
            return Verdict("Failed", found, end=found.reason)
    indices = [_completion_index(p) for p in attempt.pods]
    if any(index >= 0 and indices.count(index) > 1 for index in indices):
        return Verdict("Failed", Failure("Infrastructure", failures.POD_REPLACED, view.now), end=failures.POD_REPLACED)
    if group and attempt.group and group != attempt.group and any(_unplaced(p) for p in attempt.pods):
        return Verdict(
            "Failed", Failure("Infrastructure", failures.GROUP_REPLACED, view.now), end=failures.GROUP_REPLACED
        )
    return Verdict("Running")


def next_check(view: View, attempt: Attempt) -> float | None:
    """Seconds until a node that is not ready will count as lost, if one of the attempt's is on that way."""
    waits = []
    for pod in attempt.pods:
        since = None if is_terminal(pod) else _down_since(view, pod)
        if since is not None:
            waits.append((since + NODE_GRACE - view.now).total_seconds())
    return max(min(waits), 0.1) if waits else None


def lost(view: View, pod: Obj) -> bool:
    """Whether a pod's node is gone or has not answered for the grace time."""
    since = _down_since(view, pod)
    return since is not None and view.now >= since + NODE_GRACE


def _broken(view: View, pod: Obj, *, explained: bool) -> Failure | None:
    """A failure that the Job controller does not see, or not in time; `explained` when it has one to tell of."""
    name = pod["metadata"]["name"]
    if (pod.get("status") or {}).get("phase") == "Failed":
        # The Job controller says so within a second; after the grace time we do.
        found = failures.of_pod(pod, view.now)
        return found if found is not None and view.now >= found.time + NODE_GRACE else None
    if is_terminal(pod):
        return None
    if lost(view, pod):
        node = (pod.get("spec") or {}).get("nodeName")
        return Failure("Infrastructure", failures.NODE_LOST, view.now, f"node {node} is gone or does not answer", name)
    if pod["metadata"].get("deletionTimestamp") and not explained:
        told = failures.of_pod(pod, view.now)
        return told or Failure("Infrastructure", failures.POD_DELETED, view.now, "somebody deleted the pod", name)
    return None


def _down_since(view: View, pod: Obj) -> datetime | None:
    """Since when a pod's node has not been ready; None when it is, or when the pod has no node."""
    node_name = (pod.get("spec") or {}).get("nodeName")
    if not node_name:
        return None
    node = view.nodes_by_name.get(node_name)
    if node is None:
        # The cache of nodes may be a moment behind that of pods, so a missing node counts from the pod's start.
        return parse_time(pod["metadata"].get("creationTimestamp")) or view.now
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return parse_time(condition.get("lastTransitionTime")) or view.now
    return None


def _vanished(attempt: Attempt) -> str:
    """A pod that the Job counts as done although somebody deleted it, empty when there is none.

    A program that exits 0 when it is told to stop makes a deleted pod look finished; pods that really
    finished stay as long as their Job.
    """
    if attempt.job["metadata"].get("deletionTimestamp"):
        return ""
    stays = {_completion_index(p) for p in attempt.pods if not p["metadata"].get("deletionTimestamp")}
    for index in _indexes(str((attempt.job.get("status") or {}).get("completedIndexes") or "")):
        if index not in stays:
            return f"{attempt.name}-{index}"
    return ""


def _completion_index(pod: Obj) -> int:
    text = labels_of(pod).get("batch.kubernetes.io/job-completion-index", "")
    return int(text) if text.isdigit() else -1


def _indexes(text: str) -> Iterator[int]:
    """The numbers of `0,2-4`."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last if last.isdigit() else first) + 1)


def _unplaced(pod: Obj) -> bool:
    return not is_terminal(pod) and not (pod.get("spec") or {}).get("nodeName")


def _ended_by_us(view: View, attempt: Attempt) -> Failure:
    """The failure that made us end it, from the annotations: they outlive the pods and our memory."""
    when = parse_time(annotations_of(attempt.job).get(names.ANNOTATION_ENDED_AT)) or view.now
    told = [f for f in (failures.of_pod(p, when) for p in attempt.pods) if f is not None and f.reason == attempt.ended]
    if told:
        return told[0]
    return Failure("Infrastructure", attempt.ended, when)
