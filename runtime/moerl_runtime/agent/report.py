"""Turns the trainer's progress into report.json, within the size that a ConfigMap shared with the operator may have."""

from __future__ import annotations

import json
from typing import Any

from .progress import now, thinned

SCHEMA = 1
MAX_BYTES = 16 * 1024


def render(progress: dict[str, Any], *, attempt: int, updated_at: str | None = None) -> str:
    """The report as text, at most MAX_BYTES: the history is thinned, then dropped, then the data path goes."""
    document = {"schema": SCHEMA, "attempt": attempt, **progress, "updatedAt": updated_at or now()}
    history = list(progress.get("history") or [])
    limit = len(history)
    while True:
        text = json.dumps(document, separators=(",", ":"))
        if len(text.encode()) <= MAX_BYTES:
            return text
        if limit > 2:
            limit //= 2
            document["history"] = thinned(history, max(limit, 2))
        elif document.get("history"):
            document["history"] = []
        elif document.get("dataPath"):
            document["dataPath"] = {"truncated": True}
        else:
            raise ValueError(f"the report is {len(text)} bytes without history and data path")


def starting() -> dict[str, Any]:
    """What is said before the trainer has written anything: the pod runs, nothing is known yet."""
    return {"phase": "Starting", "iteration": 0, "iterations": 0, "policyVersion": 0, "history": []}
