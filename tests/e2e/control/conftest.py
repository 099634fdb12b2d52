"""A control loop with a scripted policy on a real API server: what is under test is observe, apply and tell."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from moerl_operator.api import names, schema
from moerl_operator.control.cache import Cache
from moerl_operator.control.intake import Intake
from moerl_operator.control.observer import Observer
from moerl_operator.control.queue import WorkQueue
from moerl_operator.control.reconciler import Reconciler
from moerl_operator.core.world import AwsError, AwsObservation, Installation, Plan, Snapshot
from moerl_operator.kube.api import Kinds, KubeApi, Obj
from moerl_operator.kube.client import connect
from moerl_operator.observe.events import Recorder
from moerl_operator.observe.metrics import Metrics
from support.apiserver import ApiServer
from support.waiting import until


@pytest.fixture
async def kube(bare_server: ApiServer) -> AsyncIterator[KubeApi]:
    """An administrator's client of the bare server, with our resource types."""
    async with connect(bare_server.kubeconfig) as client:
        for definition in schema.crds().values():
            await client.apply(Kinds.CUSTOM_RESOURCE_DEFINITION, definition)

        async def served() -> bool:
            try:
                await client.list(Kinds.MOERL_JOB)
            except Exception:
                return False
            return True

        await until("our types are served", served, seconds=30)
        yield client


class NoAws:
    """An AWS that holds nothing; `refusals` are answered by the next mutations."""

    cluster_arn = "arn:aws:eks:us-east-1:111122223333:cluster/c"

    def __init__(self) -> None:
        self.observation = AwsObservation()
        self.applied: list[Any] = []
        self.refusals: list[AwsError] = []

    async def observe(self, uid: str) -> AwsObservation:
        return self.observation

    async def facts(self, types: Any) -> dict[str, Any]:
        return {}

    async def apply(self, uid: str, action: Any) -> AwsError | None:
        self.applied.append(action)
        return self.refusals.pop(0) if self.refusals else None

    def forget(self, uid: str) -> None:
        pass


class Loop:
    """A reconciler whose plan the test writes."""

    def __init__(self, kube: KubeApi, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.cache = Cache()
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(rng=Random(0))
        self.metrics = Metrics()
        self.aws = NoAws()
        self.snapshots: list[Snapshot] = []
        self.plan: Callable[[Snapshot], Plan] = lambda snapshot: Plan()
        self.intake = Intake(
            kube=kube, cache=self.cache, queue=self.queue, metrics=self.metrics, namespaces=(namespace,)
        )
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        installation = Installation(id="i", cluster_name="c", cluster_arn="")
        self.reconciler = Reconciler(
            kube=kube,
            cache=self.cache,
            aws=self.aws,
            observer=Observer(
                kube=kube, cache=self.cache, aws=self.aws, installation=installation, clock=lambda: self.clock()
            ),
            recorder=Recorder(kube, identity="test"),
            metrics=self.metrics,
            plan=self._planned,
            clock=lambda: self.clock(),
        )

    def _planned(self, snapshot: Snapshot) -> Plan:
        self.snapshots.append(snapshot)
        return self.plan(snapshot)

    async def round(self, name: str = "j") -> float | None:
        """One reconcile after a full list, as if every watch were up to date."""
        await self.intake.resync()
        return await self.reconciler.reconcile((self.namespace, name))

    async def job(self, name: str = "j") -> Obj:
        found = await self.kube.get(Kinds.MOERL_JOB, self.namespace, name)
        assert found is not None
        return found


def manifest(namespace: str, name: str = "j") -> Obj:
    """The smallest job that the server accepts."""
    nodes = {"provisioner": "Existing", "nodeSelector": {"x": "y"}, "count": 1}
    container = {"containers": [{"name": "main", "image": "i"}]}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "framework": {"type": "Custom"},
            "storage": dict.fromkeys(("dataset", "checkpoints", "artifacts"), "s3://b/k"),
            "trainer": {"nodes": nodes, "template": {"spec": container}},
            "rollout": {"pools": [{"name": "p", "replicas": 1, "nodes": nodes}], "template": {"spec": container}},
            "buffer": {"storage": {"type": "Memory", "size": "1Gi"}, "nodes": nodes, "template": {"spec": container}},
        },
    }


def child(job: Obj, kind: str = "ConfigMap", name: str = "j-config", **content: Any) -> Obj:
    """A child of the job, labelled as all are."""
    meta = job["metadata"]
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_JOB: meta["name"],
        names.LABEL_JOB_UID: meta["uid"],
    }
    version = {"Job": "batch/v1"}.get(kind, "v1")
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": meta["namespace"], "labels": labels},
        **content,
    }


@pytest.fixture
async def loop(kube: KubeApi) -> AsyncIterator[Loop]:
    """A loop and one job `j` in a namespace of the test's own."""
    namespace = f"t-{secrets.token_hex(4)}"
    await kube.create(Kinds.NAMESPACE, {"metadata": {"name": namespace}})
    await kube.create(Kinds.MOERL_JOB, manifest(namespace))
    yield Loop(kube, namespace)
    await asyncio.sleep(0)
