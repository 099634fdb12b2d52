"""Bad manifests: refused by the real API server, with a message that names field and rule, and nothing created."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi, KubeError

pytestmark = pytest.mark.e2e
Doc = dict[str, Any]
Change = Callable[[Doc], Any]


def put(path: str, value: Any) -> Change:
    """Sets spec.<path>; a number in the path is a list index."""

    def change(job: Doc) -> None:
        *parents, last = path.split(".")
        node: Any = job["spec"]
        for part in parents:
            node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
        node[last] = value

    return change


def drop(path: str) -> Change:
    """Removes spec.<path>."""

    def change(job: Doc) -> None:
        *parents, last = path.split(".")
        node: Any = job["spec"]
        for part in parents:
            node = node[int(part)] if part.isdigit() else node[part]
        del node[last]

    return change


def both(*changes: Change) -> Change:
    def change(job: Doc) -> None:
        for each in changes:
            each(job)

    return change


def renamed(name: str) -> Change:
    return lambda job: job["metadata"].update(name=name)


@dataclass(frozen=True)
class Case:
    """A change that makes the manifest bad, and the words that the refusal must hold: the field, then the rule."""

    name: str
    change: Change
    words: tuple[str, ...]


POOL = "rollout.pools.0"
BAD = [
    Case("unknown field", put("trainers", {}), ('unknown field "spec.trainers"',)),
    Case("unknown nested field", put("trainer.nodes.instanceType", "x"), ('"spec.trainer.nodes.instanceType"',)),
    Case("wrong type", put("trainer.nodes.count", "two"), ("spec.trainer.nodes.count", "must be of type integer")),
    Case("list for object", put("buffer.storage", []), ("spec.buffer.storage", "must be of type object")),
    Case("missing trainer", drop("trainer"), ("spec.trainer: Required value",)),
    Case("missing rollout", drop("rollout"), ("spec.rollout: Required value",)),
    Case("missing buffer", drop("buffer"), ("spec.buffer: Required value",)),
    Case("no reward", drop("environment"), ("needs an environment or a reward role",)),
    Case("no pool", put("rollout.pools", []), ("spec.rollout.pools", "at least 1 items")),
    Case("no count", drop("trainer.nodes.count"), ("spec.trainer.nodes", "trainer.nodes.count is required")),
    Case("count 0", put("trainer.nodes.count", 0), ("spec.trainer.nodes.count", "greater than or equal to 1")),
    Case("min > max", both(drop(f"{POOL}.replicas"), put(f"{POOL}.minReplicas", 3), put(f"{POOL}.maxReplicas", 2)),
         ("spec.rollout.pools[0].minReplicas", "minReplicas must be <= maxReplicas")),
    Case("min without max", both(drop(f"{POOL}.replicas"), put(f"{POOL}.minReplicas", 1)), ("go together",)),
    Case("replicas and min", both(put(f"{POOL}.minReplicas", 1), put(f"{POOL}.maxReplicas", 2)),
         ("spec.rollout.pools[0]", "either replicas, or minReplicas and maxReplicas")),
    Case("no replicas at all", drop(f"{POOL}.replicas"), ("either replicas, or minReplicas and maxReplicas",)),
    Case("long name", renamed("a" * (names.MAX_JOB_NAME + 1)), ("metadata.name is at most 28 characters",)),
    Case("name with a dot", renamed("a.b"), ("metadata.name is a letter, then letters, digits and dashes",)),
    Case("name with a digit first", renamed("4th"), ("metadata.name is a letter",)),
    Case("long pool name", put(f"{POOL}.name", "p" * (names.MAX_POOL_NAME + 1)),
         ("spec.rollout.pools[0].name", "more than 11")),
    Case("pool called trainer", put(f"{POOL}.name", "trainer"), ("spec.rollout.pools[0].name", "name of a role")),
    Case("two pools of one name", lambda job: job["spec"]["rollout"]["pools"].extend(job["spec"]["rollout"]["pools"]),
         ("spec.rollout.pools[1]: Duplicate value",)),
    Case("Spot trainers", put("trainer.nodes.capacityType", "Spot"),
         ("spec.trainer.nodes.capacityType", "trainers cannot run on Spot")),
    Case("no instance types", drop("trainer.nodes.instanceTypes"),
         ("spec.trainer.nodes.instanceTypes", "required when provisioner is ManagedNodeGroup")),
    Case("existing nodes, no selector", put("buffer.nodes.provisioner", "Existing"),
         ("spec.buffer.nodes.nodeSelector", "required when provisioner is Existing")),
    Case("selector for made nodes", put("buffer.nodes.nodeSelector", {"a": "b"}),
         ("spec.buffer.nodes.nodeSelector", "only for provisioner Existing")),
    Case("block without reservation", put("trainer.nodes.capacityType", "CapacityBlock"),
         ("spec.trainer.nodes.capacityReservation", "required when capacityType is CapacityBlock or Reserved")),
    Case("reservation on demand", put("trainer.nodes.capacityReservation", "cr-0123456789abcdef0"),
         ("spec.trainer.nodes.capacityReservation", "only for capacityType")),
    Case("unknown enum", put("framework.type", "Verl"),
         ("spec.framework.type", 'supported values: "Native", "Custom"')),
    Case("Native without algorithm", drop("algorithm"), ("spec.algorithm", "required for framework Native")),
    Case("Custom with algorithm", put("framework.type", "Custom"), ("spec.algorithm", "only for framework Native")),
    Case("Custom without template", both(put("framework.type", "Custom"), drop("algorithm")),
         ("framework Custom needs trainer.template and rollout.template",)),
    Case("Native without checkpoints", drop("storage.checkpoints"),
         ("spec.storage", "are required for framework Native")),
    Case("model twice", put("model.uri", "s3://b/m"), ("spec.model", "either uri or preset")),
    Case("not a URI", put("storage.checkpoints", "https://b/c"), ("spec.storage.checkpoints", "should match")),
    Case("float as number", put("algorithm.learningRate", 0.001), ("spec.algorithm.learningRate", "of type string")),
    Case("storage class for memory", put("buffer.storage.storageClassName", "gp3"),
         ("spec.buffer.storage.storageClassName", "only for storage type PVC")),
    Case("size without unit", put("buffer.storage.size", "100"), ("spec.buffer.storage.size", "should match")),
    Case("empty failure rule", put("trainer.failurePolicy", {"rules": [{"action": "Fail"}]}),
         ("spec.trainer.failurePolicy.rules[0]", "needs exitCodes, reason or messagePattern")),
    Case("backoff upside down", put("trainer.failurePolicy", {"backoff": {"initialSeconds": 9, "maxSeconds": 3}}),
         ("spec.trainer.failurePolicy.backoff.initialSeconds", "must be <= maxSeconds")),
    Case("mixed", both(put("trainer.nodes.capacityType", "Spot"), put("buffer.storage.size", "1"), drop("algorithm")),
         ("spec.buffer.storage.size",)),
]  # fmt: skip


@pytest.fixture
def good(root: Path, api_namespace: str) -> Doc:
    document: Doc = yaml.safe_load((root / "examples" / "reverse.yaml").read_text())
    document["metadata"]["namespace"] = api_namespace
    return document


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
async def test_a_bad_manifest_is_refused_by_name(kube: KubeApi, api_namespace: str, good: Doc, case: Case) -> None:
    case.change(good)
    with pytest.raises(KubeError) as caught:
        await kube.create(Kinds.MOERL_JOB, good)
    assert caught.value.invalid
    for word in case.words:
        assert word in caught.value.message
    assert await kube.get(Kinds.MOERL_JOB, api_namespace, good["metadata"]["name"]) is None


GPU_POD = {"spec": {"containers": [{"name": "main", "image": "a:2"}]}}
# (name, change, what the refusal says; None where the change is allowed at any time)
CHANGES: list[tuple[str, Change, str | None]] = [
    ("suspend", put("suspend", True), None),
    ("pool size", put(f"{POOL}.replicas", 3), None),
    ("environment replicas", put("environment.replicas", 3), None),
    ("environment nodes", put("environment.nodes.count", 2), None),
    ("deadline", put("runPolicy.activeDeadlineSeconds", 60), None),
    ("onFinish", put("trainer.nodes.onFinish", "ScaleToZero"), None),
    ("framework", both(put("framework.type", "Custom"), drop("algorithm"), put("trainer.template", GPU_POD),
                       put("rollout.template", GPU_POD)), "framework is immutable"),
    ("storage", put("storage.checkpoints", "s3://other/place"), "storage is immutable"),
    ("storage removed", drop("storage"), "storage is immutable"),
    ("model", put("model", {"uri": "s3://a/model"}), "model is immutable"),
    ("buffer storage", put("buffer.storage.size", "2Gi"), "buffer.storage is immutable"),
    ("provisioner", put("buffer.nodes", {"provisioner": "Existing", "nodeSelector": {"a": "b"}}),
     "provisioner is immutable"),
    ("role added", put("reward", {"nodes": {"instanceTypes": ["c7i.large"]}}), "role reward cannot be added"),
    ("pool added", lambda job: job["spec"]["rollout"]["pools"].append(
        {**copy.deepcopy(job["spec"]["rollout"]["pools"][0]), "name": "more"}), "pools cannot be added"),
    ("pool renamed", put(f"{POOL}.name", "other"), "pools cannot be added, removed, renamed or reordered"),
]  # fmt: skip
# Allowed only while the job is suspended, before or after the write.
HELD: list[tuple[str, Change, str]] = [
    ("trainer count", put("trainer.nodes.count", 2), "trainer.nodes.count can change only while"),
    ("trainer types", put("trainer.nodes.instanceTypes", ["c7i.4xlarge"]), "trainer.nodes can change only while"),
    ("trainer template", put("trainer.template", GPU_POD), "trainer.template can change only while"),
    ("rollout template", put("rollout.template", GPU_POD), "rollout.template can change only while"),
    ("environment template", put("environment.template", GPU_POD), "environment.template and environment.nodes can"),
    ("buffer types", put("buffer.nodes.instanceTypes", ["r7i.xlarge"]), "buffer.template and buffer.nodes can"),
    ("pool types", put(f"{POOL}.nodes.instanceTypes", ["c7i.2xlarge"]), "of a pool only sizes and onFinish can"),
    ("pool shape", put(f"{POOL}.nodesPerReplica", 2), "of a pool only sizes and onFinish can"),
    ("algorithm", put("algorithm.iterations", 351), "algorithm can change only while"),
    ("communication", put("communication.expertParallel.transport", "TCP"), "communication can change only while"),
    ("account", put("serviceAccountName", "other"), "serviceAccountName can change only while"),
]


async def replaced(kube: KubeApi, job: Doc, change: Change) -> str | None:
    """Makes `job`, asks the server for the changed one (kubectl replace's rules), removes the job; the refusal."""
    stored = await kube.create(Kinds.MOERL_JOB, job)
    changed = copy.deepcopy(job)
    change(changed)
    patch = [{"op": "replace", "path": "/spec", "value": changed["spec"]}]
    try:
        await kube.patch(Kinds.MOERL_JOB, job["metadata"]["namespace"], job["metadata"]["name"], patch)
    except KubeError as error:
        return error.message if error.invalid else f"not refused as invalid: {error}"
    finally:
        meta = stored["metadata"]
        await kube.delete(Kinds.MOERL_JOB, meta["namespace"], meta["name"], uid=meta["uid"])
    return None


@pytest.mark.parametrize(("name", "change", "refusal"), CHANGES, ids=[each[0] for each in CHANGES])
async def test_changes(kube: KubeApi, good: Doc, name: str, change: Change, refusal: str | None) -> None:
    message = await replaced(kube, good, change)
    assert (message is None) == (refusal is None), message
    assert (refusal or "") in (message or "")


@pytest.mark.parametrize(("name", "change", "refusal"), HELD, ids=[each[0] for each in HELD])
async def test_changes_that_need_a_suspended_job(
    kube: KubeApi, good: Doc, name: str, change: Change, refusal: str
) -> None:
    message = await replaced(kube, copy.deepcopy(good), change)
    assert message is not None
    assert refusal in message
    suspended = copy.deepcopy(good)
    put("suspend", True)(suspended)
    assert await replaced(kube, suspended, change) is None, "the job stays suspended"
    assert await replaced(kube, suspended, both(change, put("suspend", False))) is None, "it goes on with the change"
    assert await replaced(kube, good, both(change, put("suspend", True))) is None, "it stops with the change"


@pytest.mark.parametrize(("name", "change", "refusal"), HELD, ids=[each[0] for each in HELD])
async def test_a_generation_that_was_not_accepted_can_be_corrected(
    kube: KubeApi, api_namespace: str, good: Doc, name: str, change: Change, refusal: str
) -> None:
    stored = await kube.create(Kinds.MOERL_JOB, good)
    job, uid = stored["metadata"]["name"], stored["metadata"]["uid"]
    condition = {"type": "Accepted", "reason": "InvalidSpec", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    identity = {"metadata": {"name": job, "namespace": api_namespace}}
    changed = copy.deepcopy(good)
    change(changed)
    patch = [{"op": "replace", "path": "/spec", "value": changed["spec"]}]
    try:
        await kube.apply_status(
            Kinds.MOERL_JOB, {**identity, "status": {"conditions": [{**condition, "status": "True"}]}}
        )
        with pytest.raises(KubeError, match=re.escape(refusal)):
            await kube.patch(Kinds.MOERL_JOB, api_namespace, job, patch)
        await kube.apply_status(
            Kinds.MOERL_JOB, {**identity, "status": {"conditions": [{**condition, "status": "False"}]}}
        )
        await kube.patch(Kinds.MOERL_JOB, api_namespace, job, patch)
    finally:
        await kube.delete(Kinds.MOERL_JOB, api_namespace, job, uid=uid)
