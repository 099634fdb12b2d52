"""Instances become nodes: what the kubelet, the cloud's node controller and EKS's drain do on AWS.

Level-triggered: each pass compares the account's instances with the cluster's nodes and closes the difference, so that
a restart of the emulator or of the API server needs no care. kwok keeps the fake nodes Ready. Instances of type `local`
all stand for the one real node: it gets their groups' labels (never taints), and loses them with the last instance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable

from moerl_operator.kube.api import Kinds, KubeApi, KubeError, Obj

from .account import Account
from .node_objects import (
    FAKE_LABEL,
    LOST_ANNOTATION,
    evictable,
    group_labels,
    holds_drain,
    node,
    place_labels,
    regroup,
)
from .world import LOCAL_TYPE, Instance, NodeGroup

log = logging.getLogger("moerl_local.aws")
_RESYNC_S = 10.0  # wall time between passes when nothing happens
_DRAIN_S = 0.5  # and while a node drains
_RETRY_S = 3.0
_PARALLEL = 8


class Joiner:
    """Keeps the cluster's nodes equal to the account's instances."""

    def __init__(self, account: Account, api: KubeApi, *, local_node: str | None) -> None:
        self._account = account
        self._api = api
        self._local_node = local_node
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(_PARALLEL)
        self.problem = ""  # the last pass's failure, empty when it went well

    def wake(self) -> None:
        """Something changed in the account."""
        self._wake.set()

    async def run(self) -> None:
        """Passes for ever; a failing API server is reported once and tried again."""
        while True:
            self._wake.clear()
            wait = _RETRY_S
            try:
                wait = _DRAIN_S if await self._pass() else _RESYNC_S
                if self.problem:
                    log.info("the cluster answers again")
                self.problem = ""
            except KubeError as error:
                if str(error) != self.problem:
                    log.warning("nodes cannot be brought up to date: %s", error)
                self.problem = str(error)
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    async def settle(self) -> None:
        """Bring the cluster up to date now, as far as it goes without waiting for pods."""
        try:
            for _ in range(3):
                if not await self._pass():
                    return
        except KubeError as error:
            self.problem = str(error)

    async def _pass(self) -> bool:
        """One comparison; whether a node is still draining."""
        async with self._lock:
            instances = [i for i in self._account.world.instances.values() if i.type != LOCAL_TYPE]
            listed = await self._api.list(Kinds.NODE, label_selector=f"{FAKE_LABEL}=true")
            # Fake nodes without a providerID are somebody else's.
            nodes = {
                entry["metadata"]["name"]: entry
                for entry in listed
                if entry["spec"].get("providerID", "").startswith("aws:///")
            }
            present = {i.node_name: i for i in instances if i.joined and i.state != "terminated"}
            await self._all(self._remove(name, entry, present) for name, entry in nodes.items())
            await self._all(self._bring(instance, nodes.get(name)) for name, instance in present.items())
            draining = await self._drain([i for i in present.values() if i.lifecycle == "Terminating:Wait"], nodes)
            await self._label_local_node()
            return draining

    async def _all(self, tasks: Iterable[Awaitable[None]]) -> None:
        async def bounded(task: Awaitable[None]) -> None:
            async with self._slots:
                await task

        results = await asyncio.gather(*(bounded(task) for task in tasks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    # --- fake nodes ----------------------------------------------------------------------------------------------

    def _group(self, instance: Instance) -> NodeGroup | None:
        return self._account.world.node_groups.get(f"{instance.cluster}/{instance.nodegroup}")

    async def _remove(self, name: str, entry: Obj, present: dict[str, Instance]) -> None:
        instance = present.get(name)
        if instance is None or instance.provider_id != entry["spec"]["providerID"]:
            await self._api.delete(Kinds.NODE, None, name, uid=entry["metadata"]["uid"])

    async def _bring(self, instance: Instance, entry: Obj | None) -> None:
        group = self._group(instance)
        if group is None:
            return
        if entry is None or entry["spec"]["providerID"] != instance.provider_id:
            if instance.state == "running" and instance.lifecycle in ("Pending", "InService"):
                await self._create(instance, group)
            return
        patch = regroup(entry, group)
        if patch is not None:
            await self._api.patch(Kinds.NODE, None, instance.node_name, patch)
        lost = instance.state == "shutting-down" and instance.lifecycle == "Terminating"
        if lost and LOST_ANNOTATION not in entry["metadata"].get("annotations", {}):
            await self._api.patch(
                Kinds.NODE, None, instance.node_name, {"metadata": {"annotations": {LOST_ANNOTATION: "lost"}}}
            )

    async def _create(self, instance: Instance, group: NodeGroup) -> None:
        try:
            # A POST takes the status too, as when a kubelet registers; an apply would not.
            await self._api.create(Kinds.NODE, node(instance, group))
        except KubeError as error:
            if not error.conflict:
                raise

    # --- drains --------------------------------------------------------------------------------------------------

    async def _drain(self, instances: list[Instance], nodes: dict[str, Obj]) -> bool:
        """Cordon, delete the pods (budgets are ignored, as EKS ends up doing), and say which nodes are empty."""
        if not instances:
            return False
        await self._all(
            self._cordon(instance.node_name)
            for instance in instances
            if not nodes.get(instance.node_name, {}).get("spec", {}).get("unschedulable")
        )
        pods: dict[str, list[Obj]] = {instance.node_name: [] for instance in instances}
        one = instances[0].node_name if len(instances) == 1 else ""
        for pod in await self._api.list(Kinds.POD, field_selector=f"spec.nodeName={one}" if one else ""):
            pods.get(pod["spec"].get("nodeName", ""), []).append(pod)
        await self._all(self._evict(pod) for found in pods.values() for pod in found if evictable(pod))
        for instance in instances:
            instance.drained = not any(holds_drain(pod) for pod in pods[instance.node_name])
        if any(instance.drained for instance in instances):
            self._account.advance()
        return True

    async def _cordon(self, name: str) -> None:
        try:
            await self._api.patch(Kinds.NODE, None, name, {"spec": {"unschedulable": True}})
        except KubeError as error:
            if error.status != 404:
                raise

    async def _evict(self, pod: Obj) -> None:
        metadata = pod["metadata"]
        await self._api.delete(Kinds.POD, metadata["namespace"], metadata["name"], uid=metadata["uid"])

    # --- the real node -------------------------------------------------------------------------------------------

    async def _label_local_node(self) -> None:
        world = self._account.world
        wanted: dict[str, str] = {}
        for instance in world.instances.values():
            group = self._group(instance)
            if instance.type != LOCAL_TYPE or group is None:
                continue
            if instance.lifecycle == "Terminating:Wait":
                instance.drained = True  # its pods go with the label, below
            if instance.joined and instance.counts:
                wanted |= group_labels(group) | place_labels(instance)
        if self._local_node is None or not (wanted or world.local_labels):
            return
        entry = await self._api.get(Kinds.NODE, None, self._local_node)
        if entry is None:
            return  # it comes back with the next pass
        have = entry["metadata"].get("labels", {})
        ours = set(world.local_labels)
        gone = {key: have[key] for key in ours - set(wanted) if key in have}
        changed = {key: value for key, value in wanted.items() if have.get(key) != value}
        # A label that was there before us with the same value is not ours to take off.
        kept = sorted((ours & set(wanted)) | set(changed))
        if gone or changed:
            replaced = {key: have[key] for key in changed if key in ours and key in have}
            labels: dict[str, str | None] = {**changed, **dict.fromkeys(gone)}
            # Written down first: after a crash in between, the keys are known and taken off.
            world.local_labels = sorted(ours | set(kept))
            self._account.save()
            await self._api.patch(Kinds.NODE, None, self._local_node, {"metadata": {"labels": labels}})
            await self._end_pods_of(gone | replaced)
        if world.local_labels != kept:
            world.local_labels = kept
            self._account.save()

    async def _end_pods_of(self, labels: dict[str, str]) -> None:
        """The pods that chose the real node by a label that it has lost: on AWS their instance would be gone."""
        if not labels:
            return
        pods = await self._api.list(Kinds.POD, field_selector=f"spec.nodeName={self._local_node}")
        for pod in pods:
            selector = pod["spec"].get("nodeSelector") or {}
            if evictable(pod) and any(selector.get(key) == value for key, value in labels.items()):
                await self._evict(pod)
