"""Counts what an account wrote, from the API server's own audit log: no client can forget a request there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def read(path: Path) -> list[dict[str, Any]]:
    """The completed requests, oldest first; a line still being written is left out."""
    found = []
    with path.open() as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event.get("stage") == "ResponseComplete":
                found.append(event)
    return found


def writes(
    events: Iterable[dict[str, Any]], *, user: str, start: datetime, end: datetime, namespace: str | None = None
) -> Counter[str]:
    """How often `user` wrote what between two times, keyed "verb resource[/subresource]"; a dry run is "dry-run …".

    Args:
        namespace: only requests for this namespace; None counts all.
    """
    counted: Counter[str] = Counter()
    for event in events:
        ref = event.get("objectRef") or {}
        if event["verb"] not in _WRITES or event.get("user", {}).get("username") != user:
            continue
        if namespace is not None and ref.get("namespace") != namespace:
            continue
        if start <= datetime.fromisoformat(event["requestReceivedTimestamp"]) < end:
            sub = f"/{ref['subresource']}" if ref.get("subresource") else ""
            verb = "dry-run" if "dryRun=" in event.get("requestURI", "") else event["verb"]
            counted[f"{verb} {ref.get('resource', '')}{sub}"] += 1
    return counted


def without(counted: Counter[str], resource: str) -> Counter[str]:
    """All but the writes to one resource, such as the `leases` that a leader renews."""
    return Counter({key: number for key, number in counted.items() if key.split(" ")[1].split("/")[0] != resource})
