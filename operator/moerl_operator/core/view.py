"""A Snapshot, parsed and indexed: what every stage of the policy reads.

A *part* is a role with nodes of its own: the trainer, one pool of the rollouts, reward,
environment, buffer. Parts keep the order in which capacity is bought, the scarcest gang first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from moerl_operator.api import names
from moerl_operator.api.job import JobSpec
from moerl_operator.api.nodes import NodeClassSpec, NodeRequirements
from moerl_operator.api.roles import Pool
from moerl_operator.core.world import InstanceFacts, Snapshot
from moerl_operator.manifests import revision
from moerl_operator.manifests.context import JobContext

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A role, or a pool of the rollout role, that has nodes of its own."""

    key: str
    role: str
    nodes: NodeRequirements
    count: int  # nodes wanted while the job runs
    needed: int  # nodes below which the part is not ready
    pool: Pool | None = None

    @property
    def label(self) -> str:
        """Label key of its nodes; the value is the node group."""
        return (names.NODE_POOL_PREFIX if self.pool else names.NODE_ROLE_PREFIX) + self.key

    @property
    def managed(self) -> bool:
        """Whether we make its node groups."""
        return self.nodes.provisioner == "ManagedNodeGroup"

    @property
    def reserved(self) -> bool:
        """Whether its capacity is paid for anyway."""
        return self.nodes.capacity_type in ("CapacityBlock", "Reserved")

    @property
    def on_finish(self) -> str:
        """What becomes of its nodes when the job ends."""
        return self.nodes.on_finish or ("Retain" if self.reserved else "Delete")

    def template(self, raw_spec: Mapping[str, Any]) -> Obj:
        """The user's pod template."""
        template: Obj = (raw_spec.get(self.role) or {}).get("template") or {}
        return template


@dataclass(frozen=True)
class View:
    """One job's snapshot with its parsed spec; `spec_error` says why there is none."""

    snap: Snapshot
    spec_error: str = ""
    parsed: JobSpec | None = None

    # --- the job ---------------------------------------------------------------------------------

    @property
    def meta(self) -> Obj:
        """Metadata of the job."""
        meta: Obj = self.snap.job["metadata"]
        return meta

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.meta["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return str(self.meta["namespace"])

    @property
    def uid(self) -> str:
        """UID of the job."""
        return str(self.meta["uid"])

    @property
    def generation(self) -> int:
        """Generation of the spec that is being looked at."""
        return int(self.meta.get("generation") or 0)

    @property
    def deleting(self) -> bool:
        """Whether somebody deleted the job and its finalizer holds it."""
        return bool(self.meta.get("deletionTimestamp"))

    @property
    def has_finalizer(self) -> bool:
        """Whether our finalizer is on the job."""
        return names.FINALIZER in (self.meta.get("finalizers") or ())

    @property
    def now(self) -> datetime:
        """The time of the snapshot, the only clock."""
        return self.snap.now

    @property
    def raw_spec(self) -> Obj:
        """The spec as the server sent it."""
        spec: Obj = self.snap.job.get("spec") or {}
        return spec

    @property
    def spec(self) -> JobSpec:
        """The parsed spec; stages that need it run only when it parsed."""
        assert self.parsed is not None
        return self.parsed

    @property
    def status(self) -> Obj:
        """The status as it was last written."""
        status: Obj = self.snap.job.get("status") or {}
        return status

    def condition(self, kind: str) -> Obj | None:
        """One condition of the observed status."""
        conditions: list[Obj] = self.status.get("conditions") or []
        return next((c for c in conditions if c.get("type") == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether a condition was last written as True."""
        found = self.condition(kind)
        return found is not None and found.get("status") == "True"

    # --- what the job refers to --------------------------------------------------------------------

    @cached_property
    def classes(self) -> dict[str, NodeClassSpec]:
        """Node classes that parse, by name."""
        out: dict[str, NodeClassSpec] = {}
        for name, obj in self.snap.node_classes.items():
            try:
                out[name] = NodeClassSpec.model_validate(obj.get("spec") or {})
            except ValidationError:
                continue
        return out

    def node_class(self, part: Part) -> NodeClassSpec:
        """The class of a part; validation has seen that it exists."""
        return self.classes[part.nodes.node_class_name]

    def facts(self, part: Part) -> InstanceFacts:
        """Facts of a part's instance type of first choice; validation has seen that all have one layout.

        Nodes that exist speak for themselves: AWS is not asked about them, and they may differ from their type.
        """
        types = part.nodes.instance_types or []
        if types and part.managed:
            return self.snap.instance_facts.get(types[0], InstanceFacts(name=types[0]))
        return _facts_of_nodes(self, part)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in the order in which capacity is bought."""
        spec = self.spec
        count = spec.trainer.nodes.count or 1
        out = [Part(names.TRAINER, names.TRAINER, spec.trainer.nodes, count, count)]
        for pool in spec.rollout.pools:
            out.append(Part(pool.name, names.ROLLOUT, pool.nodes, pool.node_count, _needed_nodes(pool), pool))
        for role, section in (
            (names.REWARD, spec.reward),
            (names.ENVIRONMENT, spec.environment),
            (names.BUFFER, spec.buffer),
        ):
            if section:
                out.append(Part(role, role, section.nodes, section.nodes.count or 1, 1))
        return tuple(out)

    def part(self, key: str) -> Part | None:
        """The part of this key, if the spec still has it."""
        return next((p for p in self.parts if p.key == key), None) if self.parsed else None

    @cached_property
    def job_context(self) -> JobContext:
        """What the builders are told about the job."""
        trainer_class = self.classes.get(self.spec.trainer.nodes.node_class_name)
        account = self.spec.service_account_name or (
            trainer_class.defaults.service_account_name if trainer_class else None
        )
        return JobContext(
            name=self.name,
            namespace=self.namespace,
            uid=self.uid,
            spec=self.spec,
            raw_spec=self.raw_spec,
            service_account=account or self.name,
        )

    def pods_revision(self, part: Part) -> str:
        """Revision of the pods of a part."""
        return revision.pods(self.spec, part.role, part.pool)

    def nodes_revision(self, part: Part) -> str:
        """Revision of the node group of a part."""
        return revision.nodes(part.nodes)

    # --- children and nodes ------------------------------------------------------------------------

    @cached_property
    def _pods_by_owner(self) -> dict[str, list[Obj]]:
        out: dict[str, list[Obj]] = {}
        for pod in self.snap.pods:
            for ref in pod["metadata"].get("ownerReferences") or ():
                if ref.get("controller"):
                    out.setdefault(ref.get("uid", ""), []).append(pod)
        return out

    @cached_property
    def _by_slot(self) -> dict[tuple[str, str, str], tuple[list[Obj], list[Obj]]]:
        out: dict[tuple[str, str, str], tuple[list[Obj], list[Obj]]] = {}
        for index, objs in enumerate((self.snap.jobs, self.snap.pods)):
            for obj in objs:
                have = labels_of(obj)
                key = (
                    have.get(names.LABEL_ROLE, ""),
                    have.get(names.LABEL_POOL, ""),
                    have.get(names.LABEL_REPLICA, ""),
                )
                out.setdefault(key, ([], []))[index].append(obj)
        return out

    def jobs_of_slot(self, role: str, pool: str, replica: str) -> list[Obj]:
        """Jobs with these labels; pool and replica are empty for the trainer."""
        return self._by_slot.get((role, pool, replica), ([], []))[0]

    def pods_of_slot(self, role: str, pool: str, replica: str) -> list[Obj]:
        """Pods with these labels, of whatever attempt."""
        return self._by_slot.get((role, pool, replica), ([], []))[1]

    def pods_of(self, owner: Obj) -> list[Obj]:
        """Pods of a Job or StatefulSet, by the owner's UID: a namesake's pods are not ours."""
        return self._pods_by_owner.get(owner["metadata"].get("uid", ""), [])

    def pods_of_role(self, role: str) -> list[Obj]:
        """All pods of a role, whatever made them."""
        return [p for p in self.snap.pods if labels_of(p).get(names.LABEL_ROLE) == role]

    def pods_of_part(self, part: Part) -> list[Obj]:
        """All pods of a part."""
        pool = part.pool.name if part.pool else None
        return [p for p in self.pods_of_role(part.role) if labels_of(p).get(names.LABEL_POOL) == pool]

    @cached_property
    def nodes_by_name(self) -> dict[str, Obj]:
        """Observed nodes."""
        return {n["metadata"]["name"]: n for n in self.snap.nodes}

    def nodes_of_group(self, part: Part, group: str) -> list[Obj]:
        """Nodes of a node group, as its label says."""
        return [n for n in self.snap.nodes if labels_of(n).get(part.label) == group]

    def nodes_of_selector(self, selector: Mapping[str, str]) -> list[Obj]:
        """Nodes that carry all these labels."""
        return [n for n in self.snap.nodes if selector.items() <= labels_of(n).items()]


def open_view(snap: Snapshot) -> View:
    """Parse a snapshot; a spec that does not parse is an answer, not an exception."""
    try:
        return View(snap, parsed=JobSpec.model_validate(snap.job.get("spec") or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return View(snap, spec_error=f"spec.{where}: {first['msg']}")


def labels_of(obj: Obj) -> dict[str, str]:
    """Labels of an object."""
    found: dict[str, str] = obj["metadata"].get("labels") or {}
    return found


def annotations_of(obj: Obj) -> dict[str, str]:
    """Annotations of an object."""
    found: dict[str, str] = obj["metadata"].get("annotations") or {}
    return found


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """A condition that is True in an object's status."""
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            found: Obj = condition
            return found
    return None


def node_ready(node: Obj) -> bool:
    """Whether a node is Ready and not on its way out."""
    return condition_of(node, "Ready") is not None and not node["metadata"].get("deletionTimestamp")


def parse_time(text: object) -> datetime | None:
    """An RFC 3339 time with its zone, or None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def format_time(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as metav1.Time writes it."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def _needed_nodes(pool: Pool) -> int:
    """Nodes without which the pool is below its floor."""
    return _ceil_div(pool.node_count * pool.needed, pool.wanted)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _facts_of_nodes(view: View, part: Part) -> InstanceFacts:
    """For nodes that exist already: the best equipped of them, since a pod that asks for its devices lands only there.

    Not the least: a node whose device plugins have not reported yet must not take the devices from all the others.
    """
    nodes = view.nodes_of_selector(part.nodes.node_selector or {})
    have = [n.get("status", {}).get("allocatable") or {} for n in nodes]
    devices = [(_count(a.get(names.RESOURCE_GPU)), _count(a.get(names.RESOURCE_EFA))) for a in have]
    gpus, efas = max(devices, default=(0, 0))
    return InstanceFacts(name="", gpus=gpus, efa_interfaces=efas)


def _count(quantity: object) -> int:
    text = str(quantity or "0")
    return int(text) if text.isdigit() else 0
