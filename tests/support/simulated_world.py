"""A small deterministic world for the pure policy: API server, controllers, kubelets and EKS as plain data.

It does what the real ones were seen to do (Job rules of 1.34, EKS's group states), one step per `tick`, and it
carries plans out with the possibility to crash between any two actions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import world as w
from moerl_operator.core.plan import plan

Obj = dict[str, Any]
START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
FACTS = {
    "c7i.large": w.InstanceFacts("c7i.large", vcpus=2, memory_mib=4096, usd_per_hour=0.1),
    "c7i.xlarge": w.InstanceFacts("c7i.xlarge", vcpus=4, memory_mib=8192, usd_per_hour=0.2),
    "p5en.48xlarge": w.InstanceFacts(
        "p5en.48xlarge", gpus=8, efa_interfaces=16, network_cards=16, vcpus=192, memory_mib=2097152, usd_per_hour=63.3
    ),
    "p5.48xlarge": w.InstanceFacts(
        "p5.48xlarge", gpus=8, efa_interfaces=32, network_cards=32, vcpus=192, memory_mib=2097152, usd_per_hour=55.0
    ),
    "g6.xlarge": w.InstanceFacts("g6.xlarge", gpus=1, vcpus=4, memory_mib=16384, usd_per_hour=0.8),
}
ZONES = ("us-east-1a", "us-east-1b")
_PLURALS = {
    "Job": "jobs",
    "Deployment": "deployments",
    "StatefulSet": "stateful_sets",
    "Service": "services",
    "ConfigMap": "config_maps",
    "Secret": "secrets",
    "ServiceAccount": "service_accounts",
    "Role": "roles",
    "RoleBinding": "role_bindings",
    "NetworkPolicy": "network_policies",
    "PodDisruptionBudget": "disruption_budgets",
}


def stamp(moment: datetime) -> str:
    """RFC 3339."""
    return moment.isoformat().replace("+00:00", "Z")


def node_class(**changes: Any) -> Obj:
    """The class `default`."""
    spec: Obj = {
        "nodeRoleArn": "arn:aws:iam::111122223333:role/moerl-node",
        "subnets": [{"id": f"subnet-0000000000000000{z[-1]}", "zone": z} for z in ZONES],
        "securityGroupIds": ["sg-00000000000000001"],
        "defaults": {"image": "moerl/runtime:test"},
    } | changes
    return {"metadata": {"name": "default"}, "spec": spec}


def nodes(count: int | None = None, kind: str = "c7i.large", **more: Any) -> Obj:
    """Node requirements as the server defaults them."""
    out: Obj = {
        "nodeClassName": "default",
        "provisioner": "ManagedNodeGroup",
        "instanceTypes": [kind],
        "capacityType": "OnDemand",
    } | more
    return out | ({"count": count} if count else {})


def job_spec(**changes: Any) -> Obj:
    """A native job: two trainers, one pool of two replicas, one environment, a buffer."""
    return {
        "suspend": False,
        "framework": {"type": "Native"},
        "algorithm": {"type": "GRPO", "iterations": 350},
        "model": {"preset": "TinyQwen3MoE"},
        "storage": {"dataset": "builtin://reverse-4", "checkpoints": "s3://b/c", "artifacts": "s3://b/a"},
        "communication": {"expertParallel": {"backend": "Auto", "transport": "Auto", "onMismatch": "Fail"}},
        "trainer": {
            "nodes": nodes(2),
            "failurePolicy": {"maxRestarts": 2, "backoff": {"initialSeconds": 5, "maxSeconds": 300}},
        },
        "rollout": {
            "pools": [{"name": "spot", "replicas": 2, "nodesPerReplica": 1, "nodes": nodes(capacityType="Spot")}],
            "failurePolicy": {"maxRestarts": 2, "backoff": {"initialSeconds": 5, "maxSeconds": 300}},
        },
        "environment": {"replicas": 1, "nodes": nodes()},
        "buffer": {"nodes": nodes(), "storage": {"type": "Memory", "size": "1Gi"}},
    } | changes


@dataclass
class Group:
    """A node group and its Auto Scaling group."""

    spec: w.NodeGroupSpec
    tags: dict[str, str]
    status: str = "CREATING"
    desired: int = 0
    instances: list[str] = field(default_factory=list)
    failures: tuple[str, ...] = ()


class World:
    """Everything outside the policy, and the loop that carries its plans out."""

    def __init__(self, spec: Obj | None = None, **class_changes: Any) -> None:
        self.now = START
        self.job: Obj | None = {
            "apiVersion": names.API_VERSION,
            "kind": "MoERLJob",
            "metadata": {"name": "demo", "namespace": "ml", "uid": UID, "generation": 1, "finalizers": []},
            "spec": spec or job_spec(),
        }
        self.classes = {"default": node_class(**class_changes)}
        self.facts = dict(FACTS)
        self.children: dict[tuple[str, str], Obj] = {}
        self.pods: dict[str, Obj] = {}
        self.nodes: dict[str, Obj] = {}
        self.groups: dict[str, Group] = {}
        self.templates: set[str] = set()
        self.retained: list[str] = []
        self.capacity: dict[str, int] = {}  # instances that a zone still has; absent: plenty
        self.aws_error: w.AwsError | None = None
        self.refuse: w.AwsError | None = None  # refuse mutations
        self.refused: w.AwsError | None = None
        self.rejected: str | None = None  # what the server says to a dry run
        self.asked: dict[int, str | None] = {}
        self.log: list[w.Action] = []
        self.events: list[w.PlannedEvent] = []
        self.writes = 0
        self.exit_on_sigterm = 143
        self.newest_release = "1.34.1-20261001"
        self.made_groups: list[str] = []
        self._serial = 0

    # --- the loop ------------------------------------------------------------------------------------

    def snapshot(self) -> w.Snapshot:
        """What the operator sees now."""
        assert self.job is not None
        generation = self.job["metadata"]["generation"]
        kinds: dict[str, Any] = {plural: [] for plural in _PLURALS.values()}
        for (kind, _), obj in self.children.items():
            kinds[_PLURALS[kind]].append(obj)
        observed = (
            w.AwsObservation(error=self.aws_error)
            if self.aws_error
            else w.AwsObservation(
                node_groups=tuple(
                    self._observe(g) for g in self.groups.values() if g.tags[names.TAG_OWNER] == f"job/{UID}"
                ),
                launch_templates={n: f"lt-{n}" for n in sorted(self.templates)},
                refused=self.refused,
            )
        )
        return w.Snapshot(
            job=self.job,
            now=self.now,
            installation=w.Installation("test", "moerl", "arn:aws:eks:us-east-1:111122223333:cluster/moerl"),
            node_classes=self.classes,
            instance_facts={} if self.aws_error else self.facts,
            pods=tuple(self.pods.values()),
            nodes=tuple(self.nodes.values()),
            aws=observed,
            dry_run_error=self.asked.get(generation),
            dry_run_done=self.asked.get(generation, "no") is None,
            **{key: tuple(value) for key, value in kinds.items()},
        )

    def decide(self) -> w.Plan:
        """The plan for now, without carrying it out."""
        return plan(self.snapshot())

    def reconcile(self, *, crash_after: int | None = None) -> w.Plan:
        """One round; `crash_after` actions the operator dies, and no status is written."""
        made = self.decide()
        if made.dry_run and self.job is not None:
            self.asked[self.job["metadata"]["generation"]] = self.rejected
            made = self.decide()
        for index, action in enumerate(made.actions):
            if crash_after is not None and index >= crash_after:
                return made
            self.log.append(action)
            if not self._carry_out(action):
                break
        if self.job is not None and made.status is not None and self.job.get("status") != made.status:
            self.job["status"] = copy.deepcopy(made.status)
            self.writes += 1
        self.events += made.events
        return made

    def run(self, ticks: int, *, seconds: float = 5) -> None:
        """Let operator and world take turns."""
        for _ in range(ticks):
            if self.job is not None:
                self.reconcile()
            self.tick(seconds)

    def tick(self, seconds: float = 5) -> None:
        """Time passes, and every controller acts once."""
        self.now += timedelta(seconds=seconds)
        self._eks()
        self._owners()
        self._job_controller()
        self._servers()
        self._scheduler()
        self._kubelets()

    # --- what happens to the world ---------------------------------------------------------------------

    def edit(self, change: Any) -> None:
        """Somebody changes the spec."""
        assert self.job is not None
        change(self.job["spec"])
        self.job["metadata"]["generation"] += 1

    def delete(self) -> None:
        """kubectl delete."""
        if self.job is not None:
            self.job["metadata"]["deletionTimestamp"] = stamp(self.now)
            self._collect_job()

    def live_pods(self, role: str) -> list[Obj]:
        """Pods of a role that are not terminal."""
        return [p for p in self.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role and not _terminal(p)]

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

    def succeed_pods(self, role: str) -> None:
        """All pods of a role end well."""
        for pod in self.live_pods(role):
            pod["status"] |= {"phase": "Succeeded", "conditions": []}

    def lose_node(self, name: str) -> None:
        """A node stops answering; its pods stay as they were."""
        self.nodes[name]["status"]["conditions"] = [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp(self.now)}
        ]

    def heal_node(self, name: str) -> None:
        """A node answers again."""
        self.nodes[name]["status"]["conditions"] = [
            {"type": "Ready", "status": "True", "lastTransitionTime": stamp(self.now)}
        ]

    def report(self, text: str) -> None:
        """The trainer's agent writes its report."""
        self.children["ConfigMap", names.report("demo")]["data"] = {"report.json": text}

    def condition(self, kind: str) -> Obj:
        """A condition of the status."""
        assert self.job is not None
        found: Obj = next(c for c in self.job["status"]["conditions"] if c["type"] == kind)
        return found

    def state(self) -> str:
        """The STATE column."""
        assert self.job is not None
        return str(self.job["status"]["display"]["state"])

    def jobs(self, role: str) -> list[Obj]:
        """Jobs of a role, by name."""
        found = [
            o
            for (kind, _), o in self.children.items()
            if kind == "Job" and o["metadata"]["labels"][names.LABEL_ROLE] == role
        ]
        return sorted(found, key=lambda o: o["metadata"]["name"])

    # --- carrying out --------------------------------------------------------------------------------

    def _carry_out(self, action: w.Action) -> bool:
        match action:
            case w.CreateChild(obj) | w.ApplyChild(obj):
                self._put(obj, apply=isinstance(action, w.ApplyChild))
            case w.PatchChild(_, kind, name, change):
                if (kind, name) in self.children:
                    _merge(self.children[kind, name], change)
            case w.DeleteChild(_, kind, name, uid):
                found = self.children.get((kind, name))
                if found is not None and found["metadata"]["uid"] == uid:
                    del self.children[kind, name]
            case w.SetFinalizer(present):
                assert self.job is not None
                self.job["metadata"]["finalizers"] = [names.FINALIZER] if present else []
                self._collect_job()
            case w.DeleteJob():
                self.delete()
            case _:
                return self._aws(action)
        return True

    def _aws(self, action: w.Action) -> bool:
        self.refused = self.refuse
        if self.refuse is not None:
            return False
        match action:
            case w.CreateNodeGroup(spec):
                assert self.job is not None
                assert names.FINALIZER in self.job["metadata"]["finalizers"], "a group needs the finalizer first"
                assert spec.tags[names.TAG_OWNER] == f"job/{UID}"
                assert spec.name not in self.made_groups, "a name was used again"
                self.templates.add(spec.name)
                self.made_groups.append(spec.name)
                self.groups[spec.name] = Group(spec, dict(spec.tags))
            case w.ScaleNodeGroup(name, _, desired):
                group = self.groups[name]
                assert group.status in ("ACTIVE", "DEGRADED")
                group.desired, group.failures = desired, ()
            case w.TerminateInstances(name, _, ids):
                group = self.groups[name]
                gone = [n for n, o in self.nodes.items() if o["spec"]["providerID"].rsplit("/", 1)[1] in ids]
                group.desired -= len(gone)
                for node in gone:
                    self._drop_node(group, node)
            case w.DeleteNodeGroup(name):
                self.groups[name].status = "DELETING"
            case w.DeleteLaunchTemplate(name):
                assert name not in self.groups, "the group still uses it"
                self.templates.discard(name)
            case w.RetagNodeGroup(name, _, _, tags):
                self.groups[name].tags = dict(tags)
                self.templates.discard(name)
                self.retained.append(name)
        return True

    def _put(self, obj: Obj, *, apply: bool) -> None:
        key = (obj["kind"], obj["metadata"]["name"])
        if key in self.children and not apply:
            return
        assert len(obj["metadata"]["name"]) <= 63
        new = copy.deepcopy(obj)
        old = self.children.get(key)
        new["metadata"]["uid"] = old["metadata"]["uid"] if old else self._uid()
        new["metadata"].setdefault("creationTimestamp", stamp(self.now))
        if old and "data" in old and "data" not in new:
            new["data"] = old["data"]
        self.children[key] = new

    def _uid(self) -> str:
        self._serial += 1
        return f"uid-{self._serial}"

    def _collect_job(self) -> None:
        if self.job and self.job["metadata"].get("deletionTimestamp") and not self.job["metadata"]["finalizers"]:
            self.job = None
            self.children.clear()

    # --- EKS -----------------------------------------------------------------------------------------

    def _observe(self, group: Group) -> w.NodeGroupObservation:
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
                    self._drop_node(group, node)
                del self.groups[name]
            else:
                self._scale(group)

    def _scale(self, group: Group) -> None:
        while len(group.instances) > group.desired:
            self._drop_node(group, group.instances[-1])
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

    def _drop_node(self, group: Group, name: str) -> None:
        if name in group.instances:
            group.instances.remove(name)
        self.nodes.pop(name, None)
        for pod in [p for p in self.pods.values() if p["spec"].get("nodeName") == name and not _terminal(p)]:
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
                    if not _terminal(pod):
                        pod["metadata"].setdefault("deletionTimestamp", stamp(self.now))
                if _has(job, "FailureTarget") and all(_terminal(p) for p in pods):
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
            pods = [p for p in self.pods_of(owner) if not _terminal(p)]
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
                if not _terminal(p) and p["metadata"]["labels"].get(names.LABEL_ATTEMPT)
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
        if "nodeName" not in pod["spec"] or _terminal(pod) or (alive and not (owned and job_pod)):
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


def _terminal(pod: Obj) -> bool:
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


def _merge(target: Obj, change: Obj) -> None:
    for key, value in change.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


__all__ = ["FACTS", "START", "UID", "ZONES", "Group", "World", "job_spec", "node_class", "nodes", "replace", "stamp"]
