"""Conditions as metav1.Condition has them: all types from first sight, times that move only with the status.

Reasons are constants of the stage that sets them; this file knows only types and the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moerl_operator.core.view import format_time

Obj = dict[str, Any]

ACCEPTED = "Accepted"
SUSPENDED = "Suspended"
QUOTA_RESERVED = "QuotaReserved"
NODES_READY = "NodesReady"
TRANSPORT_VERIFIED = "TransportVerified"
TRAINERS_READY = "TrainersReady"
ROLLOUTS_READY = "RolloutsReady"
BUFFER_HEALTHY = "BufferHealthy"
WEIGHT_PATH_READY = "WeightPathReady"
PROGRESSING = "Progressing"
DEGRADED = "Degraded"
READY = "Ready"
COMPLETE = "Complete"
FAILED = "Failed"

TYPES = (
    ACCEPTED,
    SUSPENDED,
    QUOTA_RESERVED,
    NODES_READY,
    TRANSPORT_VERIFIED,
    TRAINERS_READY,
    ROLLOUTS_READY,
    BUFFER_HEALTHY,
    WEIGHT_PATH_READY,
    PROGRESSING,
    DEGRADED,
    READY,
    COMPLETE,
    FAILED,
)
# Once True they stay, whatever the world shows later (kubeflow/trainer #3779: a finished job must not start again).
FINAL = (COMPLETE, FAILED)

MAX_MESSAGE = 4096


@dataclass(slots=True)
class Conditions:
    """The conditions of one reconcile, on top of those last written."""

    observed: Mapping[str, Obj]
    generation: int
    now: datetime
    _set: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def set(self, kind: str, status: bool | None, reason: str, message: str = "") -> None:
        """Set one condition; None is Unknown. A final one that is True is never set back."""
        if kind in FINAL and self.observed.get(kind, {}).get("status") == "True":
            return
        word = "Unknown" if status is None else str(status)
        self._set[kind] = (word, reason_word(reason), message[:MAX_MESSAGE])

    def status(self, kind: str) -> str:
        """True, False or Unknown: as set now, else as last written."""
        if kind in self._set:
            return self._set[kind][0]
        return str(self.observed.get(kind, {}).get("status", "Unknown"))

    def is_true(self, kind: str) -> bool:
        """Whether a condition is True."""
        return self.status(kind) == "True"

    def reason(self, kind: str) -> str:
        """The reason, as set now, else as last written."""
        if kind in self._set:
            return self._set[kind][1]
        return str(self.observed.get(kind, {}).get("reason", ""))

    def message(self, kind: str) -> str:
        """The message, as set now, else as last written."""
        if kind in self._set:
            return self._set[kind][2]
        return str(self.observed.get(kind, {}).get("message", ""))

    def render(self) -> list[Obj]:
        """All types in their order; untouched ones as they were, or Unknown at first sight."""
        return [self._render(kind) for kind in TYPES]

    def _render(self, kind: str) -> Obj:
        old = self.observed.get(kind)
        if kind not in self._set:
            if old is not None:
                return dict(old)
            return self._fresh(kind, ("Unknown", "NotObserved", ""))
        status, reason, message = self._set[kind]
        new = self._fresh(kind, (status, reason, message))
        if old is not None and old.get("status") == status:
            new["lastTransitionTime"] = old.get("lastTransitionTime", new["lastTransitionTime"])
        return new

    def _fresh(self, kind: str, content: tuple[str, str, str]) -> Obj:
        status, reason, message = content
        return {
            "type": kind,
            "status": status,
            "observedGeneration": self.generation,
            "lastTransitionTime": format_time(self.now),
            "reason": reason,
            "message": message,
        }


def reason_word(text: str) -> str:
    """A CamelCase word: AWS error codes may hold dots and dashes, which the API does not allow in a reason."""
    word = re.sub(r"[^A-Za-z0-9]", "", text).lstrip("0123456789")[:63]
    return word or "Unknown"
