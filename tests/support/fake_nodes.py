"""Fake nodes of a test's own, and the words of kubectl to look at them: these tests are about the cluster itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moerl_local.cluster import kwok
from moerl_local.cluster.handle import Cluster

CAPACITY = {"cpu": "192", "memory": "2Ti", "pods": "100", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}


@dataclass(frozen=True)
class Field:
    """A namespace and two fake nodes that only its pods go to."""

    cluster: Cluster
    name: str

    @property
    def nodes(self) -> list[str]:
        """The fake nodes' names."""
        return [f"{self.name}-0", f"{self.name}-1"]

    def open(self) -> None:
        """Make namespace and nodes."""
        nodes = [kwok.node(node, labels={"field": self.name}, capacity=CAPACITY) for node in self.nodes]
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}, *nodes)
        eventually(lambda: self.get("serviceaccount", "default"))

    def close(self) -> None:
        """Remove them with everything on them."""
        self.cluster.kubectl("-n", self.name, "delete", "jobs,pods", "--all", "--grace-period=0", "--force")
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")
        self.cluster.kubectl("delete", "node", *self.nodes, "--ignore-not-found")

    def create(self, *objects: dict[str, Any]) -> None:
        """POST each of `objects`."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.cluster.kubectl("create", "-f", "-", stdin=json.dumps(items))

    def get(self, *words: str) -> Any:
        """One object, None if it is not there, or a list's items."""
        said = self.cluster.kubectl("-n", self.name, "get", *words, "-o", "json", "--ignore-not-found")
        found = json.loads(said) if said.strip() else None
        return found["items"] if found and found["kind"] == "List" else found

    def phase(self, pod: str) -> str | None:
        """The pod's phase, None when it is gone."""
        found = self.get("pod", pod)
        return found["status"]["phase"] if found else None

    def pod(self, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        """A pod for these nodes."""
        metadata = {"name": name, "namespace": self.name, "annotations": annotations or {}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": self.pod_spec(**spec)}

    def pod_spec(self, **spec: Any) -> dict[str, Any]:
        """The spec of a pod for these nodes."""
        return {
            "restartPolicy": "Never",
            "nodeSelector": {"field": self.name},
            "containers": [{"name": "main", "image": "none"}],
            **spec,
        }

    def tell(self, pod: str, what: str) -> None:
        """Tell a fake pod what to do."""
        self.cluster.kubectl("-n", self.name, "annotate", "pod", pod, f"{kwok.DO}={what}", "--overwrite")


def eventually(ask: Callable[[], Any], *, within_s: float = 20.0) -> Any:
    """The first truthy answer of `ask`; fails with the last one."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {within_s} s"
        time.sleep(0.1)


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """The condition of that type, empty if there is none."""
    found = [each for each in obj["status"].get("conditions", []) if each["type"] == kind]
    return found[0] if found else {}
