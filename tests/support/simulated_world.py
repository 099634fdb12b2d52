"""A small deterministic world for the pure policy: API server, controllers, kubelets and EKS as plain data.

It does what the real ones were seen to do (Job rules of 1.34, EKS's group states), one step per `tick`, and it
carries plans out with the possibility to crash between any two actions.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

from moerl_operator.api import names
from moerl_operator.core import world as w
from moerl_operator.core.plan import plan
from support.simulated_controllers import START, Controllers, Group, stamp, terminal

Obj = dict[str, Any]
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


class World(Controllers):
    """Everything outside the policy, and the loop that carries its plans out."""

    def __init__(self, spec: Obj | None = None, **class_changes: Any) -> None:
        super().__init__()
        self.job: Obj | None = {
            "apiVersion": names.API_VERSION,
            "kind": "MoERLJob",
            "metadata": {"name": "demo", "namespace": "ml", "uid": UID, "generation": 1, "finalizers": []},
            "spec": spec or job_spec(),
        }
        self.classes = {"default": node_class(**class_changes)}
        self.facts = dict(FACTS)
        self.templates: set[str] = set()
        self.retained: list[str] = []
        self.aws_error: w.AwsError | None = None
        self.refuse: w.AwsError | None = None  # refuse mutations
        self.refused: w.AwsError | None = None
        self.rejected: str | None = None  # what the server says to a dry run
        self.asked: dict[int, str | None] = {}
        self.log: list[w.Action] = []
        self.events: list[w.PlannedEvent] = []
        self.writes = 0
        self.made_groups: list[str] = []

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
                    self.observe(g) for g in self.groups.values() if g.tags[names.TAG_OWNER] == f"job/{UID}"
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
        self.act()

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
        return [p for p in self.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role and not terminal(p)]

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
                    self.drop_node(group, node)
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

    def _collect_job(self) -> None:
        if self.job and self.job["metadata"].get("deletionTimestamp") and not self.job["metadata"]["finalizers"]:
            self.job = None
            self.children.clear()


def _merge(target: Obj, change: Obj) -> None:
    for key, value in change.items():
        if isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


__all__ = ["FACTS", "START", "UID", "ZONES", "World", "job_spec", "node_class", "nodes", "stamp"]
