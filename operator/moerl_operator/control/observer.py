"""Fills the Snapshot of one job: children and nodes from the cache, AWS from its layer, the clock.

An observation that fails raises, and then nothing is done: a question that was not answered is never read as
"it is not there".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from moerl_operator.api import names
from moerl_operator.control.cache import Cache, job_uid_of
from moerl_operator.control.ports import Aws, AwsFailure
from moerl_operator.core.world import AwsObservation, Installation, InstanceFacts, Snapshot
from moerl_operator.kube.api import Kind, Kinds, KubeApi, Obj

# Secrets and accounts that others made are not watched; they are looked up again after this time.
LOOKUP_SECONDS = 300.0
_FINAL = ("Complete", "Failed")


class Observer:
    """Makes snapshots. Holds what is looked up by name, because no watch covers it."""

    def __init__(
        self, *, kube: KubeApi, cache: Cache, aws: Aws, installation: Installation, clock: Callable[[], datetime]
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._aws = aws
        self._installation = installation
        self._clock = clock
        self._looked_up: dict[tuple[str, str, str], float] = {}

    async def snapshot(
        self, job: Obj, *, dry_run_done: bool, dry_run_error: str | None, foreign: frozenset[str] = frozenset()
    ) -> Snapshot:
        """Everything the policy may know about `job` now. Raises KubeError."""
        uid, namespace, name = (job["metadata"][key] for key in ("uid", "namespace", "name"))
        classes = {obj["metadata"]["name"]: obj for obj in self._cache.all(Kinds.MOERL_NODE_CLASS)}
        accounts = _accounts(job, classes)
        await self._look_up(Kinds.SECRET, namespace, names.buffer_secret(name))
        for account in accounts:
            await self._look_up(Kinds.SERVICE_ACCOUNT, namespace, account)
        aws, facts = await self._ask_aws(job, uid)
        children = {kind.plural: self._cache.of_job(uid, kind) for kind in _CHILD_FIELDS}
        fields: dict[str, Any] = {_CHILD_FIELDS[kind]: children[kind.plural] for kind in _CHILD_FIELDS}
        fields["service_accounts"] = self._accounts_of(namespace, accounts, children["serviceaccounts"])
        return Snapshot(
            job=job,
            now=self._clock(),
            installation=replace(
                self._installation, cluster_arn=self._installation.cluster_arn or self._aws.cluster_arn
            ),
            node_classes=classes,
            instance_facts=facts,
            nodes=self._nodes_of(job),
            aws=aws,
            foreign=tuple(sorted(foreign | self._foreign(uid, namespace, name))),
            dry_run_done=dry_run_done,
            dry_run_error=dry_run_error,
            **fields,
        )

    def forget(self, namespace: str, name: str) -> None:
        """The job is gone: a namesake's Secret is another one."""
        self._looked_up.pop((Kinds.SECRET.plural, namespace, names.buffer_secret(name)), None)

    async def _look_up(self, kind: Kind, namespace: str, name: str) -> None:
        """Have an unwatched object in the cache, at most `LOOKUP_SECONDS` old."""
        now = asyncio.get_running_loop().time()
        key = (kind.plural, namespace, name)
        known = self._cache.get(kind, namespace, name)
        if now < self._looked_up.get(key, 0.0):
            return
        found = await self._kube.get(kind, namespace, name)
        self._looked_up[key] = now + LOOKUP_SECONDS
        if found is not None:
            self._cache.put(kind, found)
        elif known is not None:
            self._cache.remove(kind, known)

    def _accounts_of(self, namespace: str, wanted: list[str], own: tuple[Obj, ...]) -> tuple[Obj, ...]:
        found = {obj["metadata"]["name"]: obj for obj in own}
        for name in wanted:
            if (obj := self._cache.get(Kinds.SERVICE_ACCOUNT, namespace, name)) is not None:
                found[name] = obj
        return tuple(found[name] for name in sorted(found))

    async def _ask_aws(self, job: Obj, uid: str) -> tuple[AwsObservation, dict[str, InstanceFacts]]:
        if not needs_aws(job):
            return AwsObservation(), {}
        observation = await self._aws.observe(uid)
        try:
            facts = await self._aws.facts(_instance_types(job))
        except AwsFailure as failure:
            return replace(observation, error=observation.error or failure.error), {}
        return observation, facts

    def _nodes_of(self, job: Obj) -> tuple[Obj, ...]:
        prefix = names.node_group(job["metadata"]["uid"], "", 0).removesuffix("-0")
        selectors = [nodes["nodeSelector"] for nodes in _node_requirements(job) if nodes.get("nodeSelector")]
        found = [node for node in self._cache.all(Kinds.NODE) if _belongs(node, prefix, selectors)]
        return tuple(sorted(found, key=lambda node: str(node["metadata"]["name"])))

    def _foreign(self, uid: str, namespace: str, name: str) -> frozenset[str]:
        """Children of a dead namesake that are still there."""
        return frozenset(
            f"{kind.kind}/{obj['metadata']['name']}"
            for kind in _CHILD_FIELDS
            if kind is not Kinds.POD
            for obj in self._cache.of_job_name(namespace, name, kind)
            if job_uid_of(obj) != uid
        )


_CHILD_FIELDS: Mapping[Kind, str] = {
    Kinds.JOB: "jobs",
    Kinds.POD: "pods",
    Kinds.DEPLOYMENT: "deployments",
    Kinds.STATEFUL_SET: "stateful_sets",
    Kinds.SERVICE: "services",
    Kinds.CONFIG_MAP: "config_maps",
    Kinds.SECRET: "secrets",
    Kinds.SERVICE_ACCOUNT: "service_accounts",
    Kinds.ROLE: "roles",
    Kinds.ROLE_BINDING: "role_bindings",
    Kinds.NETWORK_POLICY: "network_policies",
    Kinds.POD_DISRUPTION_BUDGET: "disruption_budgets",
}


def needs_aws(job: Obj) -> bool:
    """Whether AWS has to be asked: it may hold something of the job, or the job wants groups made."""
    if names.FINALIZER in (job["metadata"].get("finalizers") or []):
        return True
    conditions = (job.get("status") or {}).get("conditions") or []
    if any(each.get("type") in _FINAL and each.get("status") == "True" for each in conditions):
        return False
    wanted = any(
        nodes.get("provisioner", "ManagedNodeGroup") == "ManagedNodeGroup" for nodes in _node_requirements(job)
    )
    return wanted and not job["metadata"].get("deletionTimestamp")


def _node_requirements(job: Obj) -> Iterator[Obj]:
    """Every `nodes` section of a job, read tolerantly: the spec may be one that is going to be refused."""
    spec = job.get("spec") or {}
    for role in names.ROLES:
        section = spec.get(role)
        if not isinstance(section, Mapping):
            continue
        for part in [section, *(section.get("pools") or [])]:
            if isinstance(part, Mapping) and isinstance(part.get("nodes"), Mapping):
                yield dict(part["nodes"])


def _instance_types(job: Obj) -> set[str]:
    return {str(each) for nodes in _node_requirements(job) for each in nodes.get("instanceTypes") or []}


def _accounts(job: Obj, classes: Mapping[str, Obj]) -> list[str]:
    """ServiceAccounts that the job, or a class it uses, names; else one of the job's own name."""
    spec = job.get("spec") or {}
    used = {nodes.get("nodeClassName") or "default" for nodes in _node_requirements(job)}
    defaults = [((classes.get(name) or {}).get("spec") or {}).get("defaults") or {} for name in used]
    named = [spec.get("serviceAccountName"), *(each.get("serviceAccountName") for each in defaults)]
    return sorted({str(name) for name in named if name} | {job["metadata"]["name"]})


def _belongs(node: Obj, prefix: str, selectors: list[Mapping[str, str]]) -> bool:
    labels = node["metadata"].get("labels") or {}
    for key, value in labels.items():
        if key.startswith((names.NODE_ROLE_PREFIX, names.NODE_POOL_PREFIX)) and str(value).startswith(prefix):
            return True
    return any(selector.items() <= labels.items() for selector in selectors)
