"""The API server's dialect of HTTP: paths, media types, and errors, apart from any client library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from moerl_operator.kube.api import Kind, KubeError, Obj

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, before it is known over which connection it goes."""

    verb: str  # as audit logs and metrics call it: get, list, watch, create, apply, patch, delete
    kind: Kind
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: Any = None
    content_type: str = JSON
    accept: str = JSON
    stream_seconds: int = 0  # of a watch: how long the server keeps the stream open

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


def path_of(kind: Kind, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """The URL path of a collection or an object."""
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if kind.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts.append(kind.plural)
    parts += [part for part in (name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def namespace_of(kind: Kind, obj: Mapping[str, Any]) -> str | None:
    """The namespace an object says it is in; a namespaced object must say it."""
    if not kind.namespaced:
        return None
    namespace = obj["metadata"].get("namespace")
    if not namespace:
        raise ValueError(f"{kind.kind} {obj['metadata'].get('name')} has no namespace")
    return str(namespace)


def typed(kind: Kind, obj: Mapping[str, Any]) -> Obj:
    """The object with `apiVersion` and `kind`, which the items of a list lack."""
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind}


def watch_event(line: bytes) -> tuple[str, Obj]:
    """One line of a watch stream; an ERROR event is raised as KubeError."""
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise KubeError(int(status.get("code") or 0), status.get("reason") or "", status.get("message") or "")
    return event["type"], event["object"]


def error_of(request: Request, status: int, reason: str, text: str) -> KubeError:
    """The server's Status object as an exception; any other body (a proxy's page) by its beginning."""
    try:
        answer = json.loads(text)
        return KubeError(status, answer.get("reason") or "", answer.get("message") or str(request))
    except (ValueError, AttributeError):
        return KubeError(status, reason, f"{request}: {text[:200]}".strip())
