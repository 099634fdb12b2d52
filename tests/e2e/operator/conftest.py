"""The operator under test, and small jobs of every role whose pods are played by kwok."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi, KubeError
from support.emulator import Emulator
from support.operator import OperatorProcess, install_rights, running_operator
from support.waiting import until

Obj = dict[str, Any]
NODE_CLASS = "e2e"


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The cluster with our resource types, rights and a class for the jobs of these tests."""
    install_rights(cluster)
    node_class = {
        "nodeRoleArn": "arn:aws:iam::111122223333:role/moerl-node",
        "subnets": [{"id": f"subnet-0000000000000000{letter}", "zone": f"us-east-1{letter}"} for letter in "abc"],
        "securityGroupIds": ["sg-00000000000000001"],
        "defaults": {"image": "example.test/moerl:1"},
    }
    import json

    manifest = {
        "apiVersion": "moerl.dev/v1alpha1",
        "kind": "MoERLNodeClass",
        "metadata": {"name": NODE_CLASS},
        "spec": node_class,
    }
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    return cluster


@pytest.fixture(scope="session")
def operator(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator for all tests of the session."""
    with running_operator(installed, tmp_path_factory.mktemp("operator")) as running:
        # A run that was broken off leaves its jobs in the cluster, and the operator goes on working for them.
        installed.kubectl("delete", "moerljobs.moerl.dev", "--all", "--all-namespaces", "--timeout=180s")
        yield running


@pytest.fixture
def aws(installed: Cluster) -> Iterator[Emulator]:
    """The cluster's AWS emulator, without faults before and after."""
    assert installed.aws_endpoint
    emulator = Emulator(installed.aws_endpoint)
    emulator.clear_faults()
    yield emulator
    emulator.clear_faults()


def nodes(count: int, kind: str, **more: Any) -> Obj:
    return {"nodeClassName": NODE_CLASS, "count": count, "instanceTypes": [kind], **more}


def template(**annotations: str) -> Obj:
    spec = {"containers": [{"name": "main", "image": "example.test/moerl:1", "command": ["run"]}]}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def job(namespace: str, name: str = "tiny") -> Obj:
    """All roles, two trainers, two rollout replicas."""
    return {
        "apiVersion": "moerl.dev/v1alpha1",
        "kind": "MoERLJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "framework": {"type": "Custom"},
            "storage": {
                "dataset": "s3://moerl/data",
                "checkpoints": f"s3://moerl/{namespace}/checkpoints",
                "artifacts": f"s3://moerl/{namespace}/policy",
            },
            "trainer": {"nodes": nodes(2, "p5en.48xlarge"), "template": template()},
            "rollout": {
                "pools": [
                    {
                        "name": "spot",
                        "replicas": 2,
                        "nodes": {
                            "nodeClassName": NODE_CLASS,
                            "instanceTypes": ["p5en.48xlarge"],
                            "capacityType": "Spot",
                        },
                    }
                ],
                "template": template(),
            },
            "environment": {"replicas": 2, "nodes": nodes(1, "c7i.16xlarge"), "template": template()},
            "buffer": {"storage": {"type": "Memory", "size": "1Gi"}, "nodes": nodes(1, "r7i.16xlarge")},
        },
    }


class Jobs:
    """Makes jobs and looks at them."""

    def __init__(self, kube: KubeApi, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    def manifest(self, name: str = "tiny", change: Callable[[Obj], object] | None = None) -> Obj:
        made = copy.deepcopy(job(self.namespace, name))
        if change:
            change(made["spec"])
        return made

    async def create(self, name: str = "tiny", change: Callable[[Obj], object] | None = None) -> Obj:
        return await self.kube.create(Kinds.MOERL_JOB, self.manifest(name, change))

    async def get(self, name: str = "tiny") -> Obj | None:
        return await self.kube.get(Kinds.MOERL_JOB, self.namespace, name)

    async def state(self, name: str = "tiny") -> str:
        found = await self.get(name)
        return (((found or {}).get("status") or {}).get("display") or {}).get("state", "")

    async def condition(self, kind: str, name: str = "tiny") -> Obj:
        found = await self.get(name)
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        return next((each for each in conditions if each["type"] == kind), {})

    async def reaches(self, state: str, name: str = "tiny", *, seconds: float = 180) -> Obj:
        async def there() -> Any:
            found = await self.get(name)
            display = ((found or {}).get("status") or {}).get("display") or {}
            return found if display.get("state") == state else None

        try:
            found: Obj = await until(f"job {name} {state}", there, seconds=seconds)
        except AssertionError as error:
            found = await self.get(name) or {}
            raise AssertionError(f"{error}; status: {found.get('status')}") from None
        return found

    async def is_gone(self, name: str = "tiny") -> bool:
        return await self.get(name) is None

    async def delete(self, name: str = "tiny") -> None:
        await self.kube.delete(Kinds.MOERL_JOB, self.namespace, name)

    async def finish(self, name: str = "tiny") -> Obj:
        """Let the trainers of a running job end well; the job once it is complete and its nodes are given back."""
        for pod in await self.pods(job=name, role="trainer"):
            patch = {"metadata": {"annotations": {"fake.moerl.dev/do": "complete"}}}
            await self.kube.patch(Kinds.POD, self.namespace, pod["metadata"]["name"], patch)
        complete = await self.reaches("Complete", name)

        async def released() -> bool:
            found = await self.get(name)
            return names.FINALIZER not in ((found or {})["metadata"].get("finalizers") or [])

        await until(f"the finalizer of job {name} is gone", released, seconds=120)
        return complete

    async def pods(self, **labels: str) -> list[Obj]:
        selector = ",".join(f"moerl.dev/{key}={value}" for key, value in labels.items())
        return await self.kube.list(Kinds.POD, self.namespace, label_selector=selector or "moerl.dev/job")


@pytest.fixture
async def jobs(kube: KubeApi, namespace: str, operator: OperatorProcess, aws: Emulator) -> AsyncIterator[Jobs]:
    """Jobs in a namespace of the test's own; afterwards they are deleted and nothing of them is left in AWS."""
    found = Jobs(kube, namespace)
    yield found
    aws.clear_faults()
    for each in await kube.list(Kinds.MOERL_JOB, namespace):
        with suppress(KubeError):
            await found.delete(each["metadata"]["name"])

    async def all_gone() -> bool:
        return not await kube.list(Kinds.MOERL_JOB, namespace)

    await until("the jobs of the test are gone", all_gone, seconds=120)


Eventually = Callable[[], Awaitable[Any]]
