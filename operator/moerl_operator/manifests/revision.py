"""The revision of a child: a hash of what the user wrote for it, never of what we render from it.

A child of the current revision is left alone, so an upgraded operator whose builders render
something new changes no running pod (design section 5). Values that equal their default are left
out: a field that a later version adds, and the API server then fills in, is no word of the user's.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from moerl_operator.api import names
from moerl_operator.api.base import ApiModel
from moerl_operator.api.job import JobSpec
from moerl_operator.api.nodes import NodeRequirements
from moerl_operator.api.roles import Pool

# What every pod reads from its environment or its mounted configuration.
_SHARED = {"framework", "algorithm", "model", "storage", "communication", "service_account_name", "priority_class_name"}
# What may change while nodes are in use.
_FREE_OF_NODES = {"count", "on_finish"}


def digest(words: object) -> str:
    """16 hex digits of a canonical JSON rendering."""
    text = json.dumps(words, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pods(spec: JobSpec, role: str, pool: Pool | None = None) -> str:
    """Revision of the pods of a role, or of one pool."""
    words: dict[str, Any] = _words(spec, include=_SHARED)
    if role == names.TRAINER:
        words |= {"template": spec.trainer.template, "count": spec.trainer.nodes.count}
    elif role == names.ROLLOUT:
        words |= {"template": spec.rollout.template, "engine": _words(spec.rollout.engine)}
        words["nodesPerReplica"] = pool.nodes_per_replica if pool else 1
    elif role == names.BUFFER:
        words |= {"template": spec.buffer.template, "bufferStorage": _words(spec.buffer.storage)}
    else:
        section = spec.reward if role == names.REWARD else spec.environment
        words["template"] = section.template if section else None
    return digest(words)


def nodes(wish: NodeRequirements) -> str:
    """Revision of a node group; another one needs another launch template, so another group."""
    return digest(_words(wish, exclude=_FREE_OF_NODES))


def whole(spec: JobSpec) -> str:
    """Revision of the mounted configuration, which holds the whole spec."""
    return digest(_words(spec))


def fixed(what: str) -> str:
    """Revision of a child that no word of the user changes."""
    return digest(what)


def _words(model: ApiModel, *, include: set[str] | None = None, exclude: set[str] | None = None) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=include, exclude=exclude)
