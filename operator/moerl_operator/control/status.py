"""When a status is written: only if it says something new, and progress at most every 15 seconds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

PROGRESS_SECONDS = 15.0
_EMPTY: tuple[Any, ...] = (None, "", 0, False, [], {})
# Follows the trainer's report; everything else in a status is a change of state and is written at once.
_PROGRESS = frozenset(
    {"iteration", "policyVersion", "throughput", "lastProgressTime", "costPerHourUsd", "costPerHourUSD"}
)
_PROGRESS_DISPLAY = frozenset({"iteration", "reward", "samplesPerSecond", "costPerHour"})


def same(desired: Any, observed: Any) -> bool:
    """Whether applying `desired` would change nothing. What the server fills in by default is no difference."""
    if isinstance(desired, Mapping) and isinstance(observed, Mapping):
        keys = set(desired) | set(observed)
        return all(same(desired.get(key), observed.get(key)) for key in keys)
    if isinstance(desired, list) and isinstance(observed, list):
        return len(desired) == len(observed) and all(map(same, desired, observed))
    if any(desired == empty and type(desired) is type(empty) for empty in _EMPTY):
        return any(observed == empty and type(observed) is type(empty) for empty in _EMPTY)
    return bool(desired == observed)


def only_progress_differs(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    """Whether nothing but the trainer's figures has moved."""
    return bool(observed) and same(_without_progress(desired), _without_progress(observed))


def _without_progress(status: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in status.items() if key not in _PROGRESS}
    display = status.get("display") or {}
    rest["display"] = {key: value for key, value in display.items() if key not in _PROGRESS_DISPLAY}
    # A progress condition's message may carry the iteration; its type, status and reason are the state.
    rest["conditions"] = [
        {key: value for key, value in condition.items() if key != "message" or condition.get("type") != "Progressing"}
        for condition in status.get("conditions") or []
    ]
    return rest


def with_degraded(
    status: Mapping[str, Any], *, reason: str, message: str, generation: int, now: datetime
) -> dict[str, Any]:
    """The status with condition Degraded=True; the time of transition stays if it was so already."""
    conditions = [dict(condition) for condition in status.get("conditions") or []]
    before = next((condition for condition in conditions if condition.get("type") == "Degraded"), None)
    since = before.get("lastTransitionTime") if before and before.get("status") == "True" else None
    degraded = {
        "type": "Degraded",
        "status": "True",
        "reason": reason,
        "message": message[:4096],
        "observedGeneration": generation,
        "lastTransitionTime": since or now.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
    }
    others = [condition for condition in conditions if condition.get("type") != "Degraded"]
    return {**status, "conditions": [*others, degraded]}
