"""A KubeApi in memory, for tests on virtual time: versions, conflicts and injected failures, nothing more.

What the server itself decides (apply, validation, selectors) is tested against a real one.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from moerl_operator.kube.api import Kind, KubeError, Obj


class MemoryKube:
    """Objects by kind, namespace and name; `failures` are raised by the next calls, in order."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.calls: list[str] = []
        self.failures: list[KubeError] = []
        self._version = 100

    def _note(self, verb: str, kind: Kind, name: str) -> None:
        self.calls.append(f"{verb} {kind.plural} {name}".strip())
        if self.failures:
            raise self.failures.pop(0)

    def put(self, kind: Kind, obj: Mapping[str, Any]) -> Obj:
        """Store as the server would: with UID and version."""
        made: Obj = copy.deepcopy(dict(obj))
        self._version += 1
        meta = made["metadata"]
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["resourceVersion"] = str(self._version)
        made |= {"apiVersion": kind.api_version, "kind": kind.kind}
        self.objects[kind.plural, meta.get("namespace") or "", meta["name"]] = made
        return copy.deepcopy(made)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        self._note("get", kind, name)
        return copy.deepcopy(self.objects.get((kind.plural, namespace or "", name)))

    async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> list[Obj]:
        self._note("list", kind, "")
        return [
            copy.deepcopy(obj)
            for (plural, where, _name), obj in self.objects.items()
            if plural == kind.plural and namespace in (None, where)
        ]

    async def watch(self, kind: Kind, namespace: str | None = None, **_: Any) -> AsyncIterator[tuple[str, Obj]]:
        raise NotImplementedError
        yield "", {}

    async def create(self, kind: Kind, obj: Mapping[str, Any], *, dry_run: bool = False) -> Obj:
        meta = obj["metadata"]
        self._note("dry-run" if dry_run else "create", kind, meta["name"])
        if (kind.plural, meta.get("namespace") or "", meta["name"]) in self.objects:
            raise KubeError(409, "AlreadyExists", f"{kind.plural} {meta['name']} already exists")
        return dict(obj) if dry_run else self.put(kind, obj)

    async def apply(self, kind: Kind, obj: Mapping[str, Any], **_: Any) -> Obj:
        meta = obj["metadata"]
        self._note("apply", kind, meta["name"])
        known = self.objects.get((kind.plural, meta.get("namespace") or "", meta["name"]), {})
        return self.put(kind, _merged(known, obj))

    async def apply_status(self, kind: Kind, obj: Mapping[str, Any], **_: Any) -> Obj:
        meta = obj["metadata"]
        self._note("status", kind, meta["name"])
        known = self.objects.get((kind.plural, meta.get("namespace") or "", meta["name"]))
        if known is None:
            raise KubeError(404, "NotFound", f"{kind.plural} {meta['name']} not found")
        return self.put(kind, {**known, "status": obj["status"]})

    async def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> Obj:
        self._note("patch", kind, name)
        known = self.objects.get((kind.plural, namespace or "", name))
        if known is None:
            raise KubeError(404, "NotFound", f"{kind.plural} {name} not found")
        assert isinstance(patch, Mapping), "JSON patches are tested against a real server"
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version and version != known["metadata"]["resourceVersion"]:
            raise KubeError(409, "Conflict", "the object has been modified")
        return self.put(kind, _merged(known, patch))

    async def delete(self, kind: Kind, namespace: str | None, name: str, **_: Any) -> None:
        self._note("delete", kind, name)
        self.objects.pop((kind.plural, namespace or "", name), None)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Obj:
    out = dict(old)
    for key, value in new.items():
        out[key] = _merged(out.get(key) or {}, value) if isinstance(value, Mapping) else value
    return out
