"""What the rest of the code may ask of a Kubernetes API server.

Objects are plain dicts: server-side apply sends partial objects, for which generated model
classes are in the way. The one implementation that talks to a server is kube/client.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Obj = dict[str, Any]

FIELD_MANAGER = "moerl-operator"
STATUS_FIELD_MANAGER = "moerl-operator-status"


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource type of the API server: where it lives and how it is spelled."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version


class Kinds:
    """The resource types this project touches."""

    NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
    NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
    POD = Kind("", "v1", "pods", "Pod")
    SERVICE = Kind("", "v1", "services", "Service")
    CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
    SECRET = Kind("", "v1", "secrets", "Secret")
    SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
    JOB = Kind("batch", "v1", "jobs", "Job")
    DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
    STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
    NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
    POD_DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
    ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
    ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
    LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
    EVENT = Kind("events.k8s.io", "v1", "events", "Event")
    MOERL_JOB = Kind("moerl.dev", "v1alpha1", "moerljobs", "MoERLJob")
    MOERL_NODE_CLASS = Kind("moerl.dev", "v1alpha1", "moerlnodeclasses", "MoERLNodeClass", namespaced=False)
    CUSTOM_RESOURCE_DEFINITION = Kind(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    )


class KubeError(Exception):
    """An answer of the API server other than success.

    `status` is the HTTP code (0 when no answer came), `reason` the server's CamelCase word
    (`Conflict`, `Invalid`, `Forbidden`, ...), `message` its text for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def conflict(self) -> bool:
        """The object changed meanwhile, or exists already."""
        return self.status == 409

    @property
    def invalid(self) -> bool:
        """The server refused the object's content; asking again with the same content is useless."""
        return self.status in (400, 422)

    @property
    def retriable(self) -> bool:
        """No answer, overload or a server fault: the same request may succeed later."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class KubeApi(Protocol):
    """The calls; every method raises KubeError, except where it says that absence is an answer."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """The object, or None where there is none."""

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> list[Obj]:
        """All objects, of one namespace or of all; `apiVersion` and `kind` are filled in on each.

        With `metadata_only` neither spec nor data leaves the server (Secrets).
        """

    def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        resource_version: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[tuple[str, Obj]]:
        """(ADDED|MODIFIED|DELETED|BOOKMARK, object) until the server ends the stream."""

    async def create(self, kind: Kind, obj: Mapping[str, Any], *, dry_run: bool = False) -> Obj:
        """POST with strict field validation: an unknown field is refused, not pruned."""

    async def apply(
        self, kind: Kind, obj: Mapping[str, Any], *, field_manager: str = FIELD_MANAGER, dry_run: bool = False
    ) -> Obj:
        """Server-side apply with force and strict field validation."""

    async def apply_status(
        self, kind: Kind, obj: Mapping[str, Any], *, field_manager: str = STATUS_FIELD_MANAGER
    ) -> Obj:
        """Server-side apply of the status subresource."""

    async def patch(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> Obj:
        """A mapping is a merge patch, a sequence a JSON patch."""

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        propagation: str = "Background",
        grace_seconds: int | None = None,
    ) -> None:
        """Absence is success; with `uid` another object of the same name is left alone."""
