"""Every rendered child is taken by a real API server with strict validation, at the pod-security level we state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.core import workloads
from moerl_operator.core.topology import arrange
from moerl_operator.kube.api import Kind, Kinds, KubeApi, KubeError
from moerl_operator.kube.client import connect
from moerl_operator.manifests.pods import pod_template, wants_efa
from moerl_operator.manifests.security import POD_SECURITY_LEVEL, pod_class
from support.apiserver import ApiServer, api_server
from support.rendered import SPECS, context, view

pytestmark = pytest.mark.e2e
Obj = dict[str, Any]
LEVELS = ("restricted", "baseline", "privileged")
KINDS = {kind.kind: kind for kind in vars(Kinds).values() if isinstance(kind, Kind)}
PARTS = [(name, key) for name in SPECS for key in ("trainer", "spot", "environment", "buffer")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("admission")) as running:
        yield running


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[KubeApi]:
    async with connect(server.kubeconfig) as client:
        for name in ("ml", *LEVELS):
            labels = {"pod-security.kubernetes.io/enforce": name} if name in LEVELS else {}
            if await client.get(Kinds.NAMESPACE, None, name) is None:
                await client.create(Kinds.NAMESPACE, {"metadata": {"name": name, "labels": labels}})
        yield client


@pytest.mark.parametrize("name", SPECS)
async def test_every_child_passes_strict_validation(kube: KubeApi, name: str) -> None:
    seen = view(SPECS[name])
    for obj in workloads.dry_run(seen, arrange(seen, suspended=False)):
        await kube.create(KINDS[obj["kind"]], obj, dry_run=True)


async def test_a_typo_inside_a_template_is_named(kube: KubeApi) -> None:
    spec = SPECS["native"] | {
        "environment": SPECS["native"]["environment"]
        | {"template": {"spec": {"containers": [{"name": "main", "image": "x", "imagePulPolicy": "Never"}]}}}
    }
    seen = view(spec)
    refused = []
    for obj in workloads.dry_run(seen, arrange(seen, suspended=False)):
        try:
            await kube.create(KINDS[obj["kind"]], obj, dry_run=True)
        except KubeError as error:
            refused.append(error.message)
    assert len(refused) == 1
    assert "imagePulPolicy" in refused[0]


@pytest.mark.parametrize(("name", "key"), PARTS, ids=["-".join(pair) for pair in PARTS])
async def test_pod_security_level_is_the_stated_one_and_no_lower(kube: KubeApi, name: str, key: str) -> None:
    role = context(SPECS[name], key)
    stated = POD_SECURITY_LEVEL[pod_class(gpus=role.facts.gpus, efa=wants_efa(role))]
    pod = pod_template(role, "demo-child")
    # What the Job or the ServiceAccount controller would have done, or would not be there in a bare server.
    pod["spec"].setdefault("restartPolicy", "Always")
    for volume in pod["spec"].get("volumes", ()):
        assert "hostPath" not in volume
    if key == "buffer" and name != "native":
        pod["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
    pod["spec"].pop("priorityClassName", None)
    answers = {level: await _answer(kube, pod, level) for level in LEVELS}
    assert [level for level, said in answers.items() if not said] == list(LEVELS[LEVELS.index(stated) :])
    assert all("PodSecurity" in said for said in answers.values() if said)
    assert names.LABEL_ROLE in pod["metadata"]["labels"]


async def _answer(kube: KubeApi, pod: Obj, namespace: str) -> str:
    """What the server says against a pod in a namespace, empty when it takes it."""
    body = {"metadata": pod["metadata"] | {"name": "probe", "namespace": namespace}, "spec": pod["spec"]}
    try:
        await kube.create(Kinds.POD, body, dry_run=True)
    except KubeError as error:
        return error.message
    return ""
