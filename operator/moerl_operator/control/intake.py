"""From an object that changed to the keys of the jobs that it concerns: into the cache, then into the queue."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from moerl_operator.api import names
from moerl_operator.control.cache import Cache, job_uid_of, key_of
from moerl_operator.control.kinds import WATCHED, selector_of
from moerl_operator.control.queue import WorkQueue
from moerl_operator.control.reconciler import JobKey
from moerl_operator.kube.api import Kind, Kinds, KubeApi, Obj
from moerl_operator.observe.metrics import Metrics

log = logging.getLogger(__name__)

_NODE_STATUS_FIELDS = ("allocatable", "capacity", "addresses")


class Intake:
    """The one door for news of the cluster, whoever brings it: a watch, or a full list."""

    def __init__(
        self, *, kube: KubeApi, cache: Cache, queue: WorkQueue[JobKey], metrics: Metrics, namespaces: tuple[str, ...]
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._queue = queue
        self._metrics = metrics
        self._namespaces = namespaces

    def take(self, kind: Kind, event_type: str | None, obj: Obj) -> None:
        """One watch event; `event_type` is None for what a watch lists at its start."""
        self._metrics.events.labels(kind.plural, event_type or "LISTED").inc()
        before = self._cache.get(kind, *key_of(obj))
        if event_type == "DELETED":
            if self._cache.remove(kind, obj):
                self._wake(kind, obj, background=False)
        elif self._cache.put(kind, obj) and not _unremarkable(kind, before, obj):
            self._wake(kind, obj, background=event_type is None)

    async def resync(self, *, first: bool = False) -> int:
        """List everything and wake what differs; returns the number of changes that no watch had shown.

        `first` fills the empty cache: nothing can have been missed then.
        """
        found = 0
        for kind in WATCHED:
            for namespace in self._scopes(kind):
                mark = self._cache.mark()
                objects = await self._kube.list(kind, namespace, label_selector=selector_of(kind))
                changed = self._cache.replace(kind, objects, mark, namespace=namespace)
                for obj in changed:
                    self._wake(kind, obj, background=True)
                if not first:
                    self._metrics.missed.labels(kind.plural).inc(len(changed))
                found += len(changed)
        return found

    def wake_all(self) -> list[JobKey]:
        """Keys of all jobs."""
        return [key_of(job) for job in self._cache.all(Kinds.MOERL_JOB)]

    def _scopes(self, kind: Kind) -> tuple[str | None, ...]:
        return self._namespaces or (None,) if kind.namespaced else (None,)

    def _wake(self, kind: Kind, obj: Obj, *, background: bool) -> None:
        for key in self._jobs_of(kind, obj):
            self._queue.add(key, background=background)

    def _jobs_of(self, kind: Kind, obj: Obj) -> Iterator[JobKey]:
        if kind is Kinds.MOERL_JOB:
            yield key_of(obj)
        elif kind is Kinds.MOERL_NODE_CLASS:
            yield from self.wake_all()
        elif kind is Kinds.NODE:
            yield from self._jobs_of_node(obj)
        elif uid := job_uid_of(obj):
            # By name, since the job may be gone, or be another one that waits for this child to go.
            name = (obj["metadata"].get("labels") or {}).get(names.LABEL_JOB)
            job = self._cache.job_of_uid(uid)
            if job is not None:
                yield key_of(job)
            elif name:
                yield (obj["metadata"].get("namespace") or "", name)

    def _jobs_of_node(self, node: Obj) -> Iterator[JobKey]:
        """Jobs whose group made the node, whose pods are on it, or that use nodes that exist already."""
        labels = node["metadata"].get("labels") or {}
        groups = {
            str(value)
            for key, value in labels.items()
            if key.startswith((names.NODE_ROLE_PREFIX, names.NODE_POOL_PREFIX))
        }
        name = node["metadata"]["name"]
        there = {job_uid_of(pod) for pod in self._cache.all(Kinds.POD) if pod.get("spec", {}).get("nodeName") == name}
        for job in self._cache.all(Kinds.MOERL_JOB):
            uid = job["metadata"]["uid"]
            prefix = names.node_group(uid, "", 0).removesuffix("-0")
            mine = any(group.startswith(prefix) for group in groups)
            if mine or uid in there or _uses_existing_nodes(job):
                yield key_of(job)


def _uses_existing_nodes(job: Obj) -> bool:
    spec = job.get("spec") or {}
    sections = [spec.get(role) or {} for role in names.ROLES]
    sections += (spec.get(names.ROLLOUT) or {}).get("pools") or []
    return any((section.get("nodes") or {}).get("provisioner") == "Existing" for section in sections)


def _unremarkable(kind: Kind, before: Obj | None, obj: Obj) -> bool:
    """A node's heartbeat: everything that a policy could look at is as it was."""
    return kind is Kinds.NODE and before is not None and _node_digest(before) == _node_digest(obj)


def _node_digest(node: Obj) -> tuple[object, ...]:
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    conditions = [(each.get("type"), each.get("status")) for each in status.get("conditions") or []]
    return (
        meta.get("labels"),
        meta.get("annotations"),
        meta.get("deletionTimestamp"),
        spec.get("taints"),
        spec.get("unschedulable"),
        sorted(conditions, key=str),
        *(status.get(name) for name in _NODE_STATUS_FIELDS),
    )
