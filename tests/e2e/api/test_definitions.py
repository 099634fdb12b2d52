"""The real API server takes the definitions, the examples and what they default to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moerl_operator.api import schema
from moerl_operator.api.job import JobSpec
from moerl_operator.kube.api import Kinds, KubeApi

pytestmark = pytest.mark.e2e
KINDS = {"MoERLJob": Kinds.MOERL_JOB, "MoERLNodeClass": Kinds.MOERL_NODE_CLASS}


async def test_they_are_established_and_structural(definitions: list[dict[str, Any]]) -> None:
    for crd in definitions:
        conditions = {each["type"]: each for each in crd["status"]["conditions"]}
        assert conditions["Established"]["status"] == "True"
        assert conditions.get("NonStructuralSchema", {"status": "False"})["status"] == "False"
        assert crd["status"]["acceptedNames"]["categories"] == ["moerl"]


async def test_the_server_stores_the_schema_unchanged(definitions: list[dict[str, Any]]) -> None:
    """Nothing of a schema was pruned or rewritten: what is tested here is what users get."""
    wanted = {crd["metadata"]["name"]: crd["spec"]["versions"][0]["schema"] for crd in schema.crds().values()}
    assert {crd["metadata"]["name"]: crd["spec"]["versions"][0]["schema"] for crd in definitions} == wanted


async def test_every_example_is_accepted(kube: KubeApi, api_namespace: str, root: Path) -> None:
    seen = []
    for path in sorted((root / "examples").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if kind := KINDS.get(document["kind"]):
                if kind.namespaced:
                    document["metadata"]["namespace"] = api_namespace
                await kube.create(kind, document, dry_run=True)
                seen.append(path.name)
    assert len(seen) >= 4


async def test_the_servers_defaults_are_the_models(kube: KubeApi, api_namespace: str, root: Path) -> None:
    for name in ("reverse", "qwen3-grpo-48-nodes", "custom-framework"):
        document = yaml.safe_load((root / "examples" / f"{name}.yaml").read_text())
        document["metadata"]["namespace"] = api_namespace
        stored = await kube.create(Kinds.MOERL_JOB, document, dry_run=True)
        assert stored["spec"] == JobSpec.model_validate(document["spec"]).wire()


async def test_kubectl_finds_them_by_short_name_and_category(cluster: Any, api_namespace: str, root: Path) -> None:
    cluster.kubectl("-n", api_namespace, "create", "-f", str(root / "examples" / "reverse.yaml"))
    header, row = cluster.kubectl("-n", api_namespace, "get", "mrj").splitlines()
    columns = "NAME STATE ITERATION REWARD TRAINERS ROLLOUTS SAMPLES/S TRANSPORT $/H AGE"
    assert header.split() == columns.split()
    assert row.split()[0] == "reverse"
    assert "moerljob.moerl.dev/reverse" in cluster.kubectl("-n", api_namespace, "get", "moerl", "-o", "name")
    explained = cluster.kubectl("explain", "moerljob.spec.trainer.nodes.capacityType")
    assert "How the instances are bought." in explained
    cluster.kubectl("-n", api_namespace, "delete", "mrj", "reverse", "--wait=false")
