"""The controllers of the simulated world: EKS with Auto Scaling, and Kubernetes' own, one step per tick."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import world as w

Obj = dict[str, Any]
START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def stamp(moment: datetime) -> str:
    """RFC 3339."""
    return moment.isoformat().replace("+00:00", "Z")


@dataclass
class Group:
    """A node group and its Auto Scaling group."""

    spec: w.NodeGroupSpec
    tags: dict[str, str]
    status: str = "CREATING"
    desired: int = 0
    instances: list[str] = field(default_factory=list)
    failures: tuple[str, ...] = ()


class Controllers:
    """The state that controllers share, and what each does with it."""

    def __init__(self) -> None:
        self.now = START
        self.children: dict[tuple[str, str], Obj] = {}
        self.pods: dict[str, Obj] = {}
        self.nodes: dict[str, Obj] = {}
        self.groups: dict[str, Group] = {}
        self.capacity: dict[str, int] = {}  # instances that a zone still has; absent: plenty
        self.exit_on_sigterm = 143
        self.newest_release = "1.34.1-20261001"
        self._serial = 0

    def act(self) -> None:
        """Every controller acts once."""
        self._eks()
        self._owners()
        self._job_controller()
        self._servers()
        self._scheduler()
        self._kubelets()

    def pods_of(self, owner: Obj) -> list[Obj]:
        """Pods of a Job, Deployment or StatefulSet."""
        uid = owner["metadata"]["uid"]
        return [p for p in self.pods.values() if p["metadata"]["ownerReferences"][0]["uid"] == uid]

    def fail_pod(self, name: str, *, code: int = 1, reason: str = "Error", message: str = "") -> None:
        """The main container ends with an error."""
        pod = self.pods[name]
        pod["status"]["phase"] = "Failed"
        pod["status"]["conditions"] = []
        ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": stamp(self.now)}
        pod["status"]["containerStatuses"] = [{"name": "main", "state": {"terminated": ended}}]

    def _uid(self) -> str:
        self._serial += 1
        return f"uid-{self._serial}"

    # --- EKS -----------------------------------------------------------------------------------------

    def observe(self, group: Group) -> w.NodeGroupObservation:
        """What EKS and Auto Scaling say of a group."""
        return w.NodeGroupObservation(
            name=group.spec.name,
            status=group.status,
            tags=dict(group.tags),
            desired=group.desired,
            maximum=group.spec.maximum,
            in_service=len(group.instances),
            pending=0 if group.failures else max(0, group.desired - len(group.instances)),
            asg_name="" if group.status == "CREATING" else f"eks-{group.spec.name}",
            instance_types=group.spec.instance_types,
            zone=group.spec.zone,
            failures=group.failures,
            arn=f"arn:{group.spec.name}",
            release_version="" if group.status == "CREATING" else group.spec.release_version or self.newest_release,
        )

    def _eks(self) -> None:
        for name, group in list(self.groups.items()):
            if group.status == "CREATING":
                group.status = "ACTIVE"
            elif group.status == "DELETING":
                for node in list(group.instances):
                    self.drop_node(group, node)
                del self.groups[name]
            else:
                self._scale(group)

    def _scale(self, group: Group) -> None:
        while len(group.instances) > group.desired:
            self.drop_node(group, group.instances[-1])
        while len(group.instances) < group.desired:
            left = self.capacity.get(group.spec.zone)
            if left == 0:
                group.failures = ("InsufficientInstanceCapacity - there is no such capacity in this zone",)
                return
            if left is not None:
                self.capacity[group.spec.zone] = left - 1
            self._serial += 1
            name = f"ip-10-1-0-{self._serial}"
            group.instances.append(name)
            self.nodes[name] = {
                "metadata": {
                    "name": name,
                    "uid": self._uid(),
                    "labels": dict(group.spec.labels)
                    | {"node.kubernetes.io/instance-type": group.spec.instance_types[0]},
                },
                "spec": {"providerID": f"aws:///{group.spec.zone}/i-{self._serial:017x}"},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": stamp(self.now)}]},
            }

    def drop_node(self, group: Group, name: str) -> None:
        """An instance ends, and its node with it."""
        if name in group.instances:
            group.instances.remove(name)
        self.nodes.pop(name, None)
        for pod in [p for p in self.pods.values() if p["spec"].get("nodeName") == name and not terminal(p)]:
            if names.LABEL_ATTEMPT not in pod["metadata"]["labels"]:
                del self.pods[pod["metadata"]["name"]]
                continue
            # PodGC; the pod stays until the Job controller has counted it.
            pod["status"] = {
                "phase": "Failed",
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByPodGC",
                        "message": "node is gone",
                        "lastTransitionTime": stamp(self.now),
                    }
                ],
            }

    # --- Kubernetes ----------------------------------------------------------------------------------

    def _owners(self) -> None:
        """The garbage collector: pods of owners that are gone are deleted."""
        uids = {o["metadata"]["uid"] for o in self.children.values()}
        for pod in self.pods.values():
            if pod["metadata"]["ownerReferences"][0]["uid"] not in uids:
                pod["metadata"].setdefault("deletionTimestamp", stamp(self.now))

    def _job_controller(self) -> None:
        for (kind, name), job in self.children.items():
            if kind != "Job" or _has(job, "Failed") or _has(job, "Complete"):
                continue
            pods = self.pods_of(job)
            status = job.setdefault("status", {})
            done = status.setdefault("done", [])
            done += [i for i in (_index(p) for p in pods if p["status"]["phase"] == "Succeeded") if i not in done]
            status["completedIndexes"] = ",".join(sorted(done, key=int))
            failed = next((p for p in pods if p["status"]["phase"] == "Failed"), None)
            if "failure" in status and not _has(job, "FailureTarget"):
                self._condition(job, "FailureTarget", "PodFailurePolicy", status["failure"])
            if failed is not None:
                # It deletes the other pods first, and says why a moment later.
                status.setdefault("failure", _why(failed))
            if "failure" in status or job["spec"].get("suspend"):
                for pod in pods:
                    if not terminal(pod):
                        pod["metadata"].setdefault("deletionTimestamp", stamp(self.now))
                if _has(job, "FailureTarget") and all(terminal(p) for p in pods):
                    self._condition(job, "Failed", "PodFailurePolicy", "")
                continue
            if len(done) == job["spec"]["completions"]:
                self._condition(job, "Complete", "CompletionsReached", "")
                status["completionTime"] = stamp(self.now)
                continue
            taken = {_index(p) for p in pods} | set(done)
            for index in range(job["spec"]["completions"]):
                if str(index) not in taken:
                    self._make_pod(job, f"{name}-{index}-{self._uid()}", str(index))

    def _servers(self) -> None:
        for (kind, name), owner in self.children.items():
            if kind not in ("Deployment", "StatefulSet"):
                continue
            pods = [p for p in self.pods_of(owner) if not terminal(p)]
            wanted = owner["spec"]["replicas"]
            for pod in pods[wanted:]:
                pod["metadata"].setdefault("deletionTimestamp", stamp(self.now))
            for _ in range(wanted - len(pods)):
                self._make_pod(owner, f"{name}-{self._uid()}", "")

    def _make_pod(self, owner: Obj, name: str, index: str) -> None:
        template = owner["spec"]["template"]
        labels = dict(template["metadata"]["labels"])
        if index:
            labels["batch.kubernetes.io/job-completion-index"] = index
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": self._uid(),
                "labels": labels,
                "creationTimestamp": stamp(self.now),
                "ownerReferences": [{"kind": owner["kind"], "uid": owner["metadata"]["uid"], "controller": True}],
            },
            "spec": {"nodeSelector": dict(template["spec"].get("nodeSelector") or {})},
            "status": {"phase": "Pending", "conditions": []},
        }

    def _scheduler(self) -> None:
        for pod in self.pods.values():
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            used = {
                p["spec"].get("nodeName")
                for p in self.pods.values()
                if not terminal(p) and p["metadata"]["labels"].get(names.LABEL_ATTEMPT)
            }
            for name, node in self.nodes.items():
                fits = pod["spec"]["nodeSelector"].items() <= node["metadata"]["labels"].items()
                crowded = name in used and pod["metadata"]["labels"].get(names.LABEL_ATTEMPT)
                if fits and _has(node, "Ready") and not crowded:
                    pod["spec"]["nodeName"] = name
                    break

    def _kubelets(self) -> None:
        for name, pod in list(self.pods.items()):
            node = self.nodes.get(pod["spec"].get("nodeName", ""))
            alive = node is not None and _has(node, "Ready")
            if pod["metadata"].get("deletionTimestamp"):
                self._stop(name, pod, alive=alive)
            elif alive and pod["status"]["phase"] == "Pending":
                pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    def _stop(self, name: str, pod: Obj, *, alive: bool) -> None:
        """SIGTERM, then gone; a Job's pod stays until its controller has counted it."""
        owner = pod["metadata"]["ownerReferences"][0]["uid"]
        owned = any(o["metadata"]["uid"] == owner for o in self.children.values())
        job_pod = names.LABEL_ATTEMPT in pod["metadata"]["labels"]
        if "nodeName" not in pod["spec"] or terminal(pod) or (alive and not (owned and job_pod)):
            del self.pods[name]
        elif alive and self.exit_on_sigterm == 0:
            pod["status"] |= {"phase": "Succeeded", "conditions": []}
        elif alive:
            self.fail_pod(name, code=self.exit_on_sigterm)

    def _condition(self, obj: Obj, kind: str, reason: str, message: str) -> None:
        status = obj.setdefault("status", {})
        status.setdefault("conditions", []).append(
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": stamp(self.now),
            }
        )


def _has(obj: Obj, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def terminal(pod: Obj) -> bool:
    """Whether a pod has ended."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _index(pod: Obj) -> str:
    return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def _why(pod: Obj) -> str:
    """The Job controller's words for a failed pod."""
    name = f"ml/{pod['metadata']['name']}"
    if _has(pod, "DisruptionTarget"):
        return f"Pod {name} has condition DisruptionTarget matching FailJob rule at index 0"
    ended = pod["status"].get("containerStatuses", [{}])[0]
    code = ((ended.get("state") or {}).get("terminated") or {}).get("exitCode", 1)
    return f"Container main for pod {name} failed with exit code {code} matching FailJob rule at index 1"
