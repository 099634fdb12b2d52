"""The revision of a child: a hash of what the user wrote for it, never of what we render from it.

A child of the current revision is left alone, so an upgraded operator whose builders render
something new changes no running pod (design section 5).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from moerl_operator.api import names

# Parts of the spec that every pod reads from its environment or its mounted configuration.
SHARED = ("framework", "algorithm", "model", "storage", "communication", "serviceAccountName", "priorityClassName")
# Parts of a role that may change while it runs, so that they must not make its children look outdated.
NODE_WORDS = ("nodeClassName", "provisioner", "instanceTypes", "capacityType", "capacityReservation", "zones",
              "placementGroup", "nodeSelector")


def digest(words: object) -> str:
    """16 hex digits of a canonical JSON rendering."""
    text = json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pods(spec: Mapping[str, Any], role: str, pool: str = "") -> str:
    """Revision of the pods of a role, or of one pool."""
    section = spec.get(role) or {}
    words: dict[str, Any] = {key: spec[key] for key in SHARED if key in spec} | {"template": section.get("template")}
    if role == names.TRAINER:
        words["count"] = (section.get("nodes") or {}).get("count")
    elif role == names.ROLLOUT:
        words["engine"] = section.get("engine")
        words["nodesPerReplica"] = next(
            (p.get("nodesPerReplica", 1) for p in section.get("pools", ()) if p.get("name") == pool), 1
        )
    elif role == names.BUFFER:
        words["storage"] = [words.get("storage"), section.get("storage")]
    return digest(words)


def nodes(spec: Mapping[str, Any], role: str, pool: str = "") -> str:
    """Revision of the node group of a role or pool; another one needs another launch template, so another group."""
    section = spec.get(role) or {}
    if pool:
        section = next((p for p in section.get("pools", ()) if p.get("name") == pool), {})
    wish = section.get("nodes") or {}
    return digest({key: wish[key] for key in NODE_WORDS if key in wish})


def whole(spec: Mapping[str, Any]) -> str:
    """Revision of the mounted configuration, which holds the whole spec."""
    return digest(spec)


def fixed(what: str) -> str:
    """Revision of a child that no word of the user changes."""
    return digest(what)
