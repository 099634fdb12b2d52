"""Every example is valid for the models and the generated schema, and says what its comment promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft4Validator

from moerl_operator.api import names
from moerl_operator.api.job import Job, JobSpec
from moerl_operator.api.nodes import NodeClass
from moerl_operator.api.schema import root_schema

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MODELS = {"MoERLJob": Job, "MoERLNodeClass": NodeClass}


def documents() -> list[Any]:
    found = []
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] in MODELS:
                found.append(pytest.param(document, id=f"{path.stem}-{document['kind']}"))
    return found


def spec(name: str) -> JobSpec:
    return JobSpec.model_validate(yaml.safe_load((EXAMPLES / name).read_text())["spec"])


@pytest.mark.parametrize("document", documents())
def test_models_and_schema_accept_it(document: dict[str, Any]) -> None:
    assert document["apiVersion"] == names.API_VERSION
    model = MODELS[document["kind"]]
    parsed = model.model_validate({"spec": document["spec"]})
    problems = [error.message for error in Draft4Validator(root_schema(model)).iter_errors(document)]
    assert problems == []
    assert (
        parsed.wire()["spec"].items() >= {k: v for k, v in document["spec"].items() if not isinstance(v, dict)}.items()
    )
    if document["kind"] == "MoERLJob":
        assert len(document["metadata"]["name"]) <= names.MAX_JOB_NAME


def test_the_reference_shape_is_48_nodes_and_asks_for_efa() -> None:
    job = spec("qwen3-grpo-48-nodes.yaml")
    gpus = {"trainer": job.trainer.nodes.count, **{pool.name: pool.node_count for pool in job.rollout.pools}}
    assert gpus["trainer"] == 16
    assert sum(count for count in gpus.values() if count) == 48
    assert {t for nodes in (job.trainer.nodes, *(pool.nodes for pool in job.rollout.pools))
            for t in nodes.instance_types or ()} == {"p5en.48xlarge"}  # fmt: skip
    assert job.trainer.nodes.capacity_type == "OnDemand"
    assert job.communication.expert_parallel.transport == "EFAGDA"


def test_the_small_example_is_native_and_cheap() -> None:
    job = spec("reverse.yaml")
    assert job.framework.type == "Native"
    assert job.environment is not None
    kinds = {kind.split(".")[0] for nodes in job.role_nodes().values() for kind in nodes.instance_types or ()}
    assert kinds <= {"c7i", "c6i", "r7i", "r6i"}
