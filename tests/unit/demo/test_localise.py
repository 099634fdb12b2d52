"""The localised example is still the user's job: valid, and changed only where this machine is not EKS."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moerl_local.demo import localise
from moerl_local.demo.manifests import CHECKOUT, EXAMPLE, example
from moerl_operator.api.job import Job
from moerl_operator.api.nodes import NodeClass

MACHINE = localise.Machine(Path("/home/someone/moerl"), "moerl-base:local", "http://10.244.0.1:4566")


@pytest.fixture
def job() -> dict:
    return localise.job(example(), MACHINE, namespace="demo", model_uri="s3://moerl/models/warmstart")


def test_the_result_is_a_valid_job(job: dict) -> None:
    parsed = Job.model_validate({"spec": job["spec"]})
    assert parsed.spec.model is not None
    assert parsed.spec.model.uri == "s3://moerl/models/warmstart"
    assert {tuple(nodes.instance_types or ()) for nodes in parsed.spec.role_nodes().values()} == {("local",)}
    assert {nodes.node_class_name for nodes in parsed.spec.role_nodes().values()} == {localise.NODE_CLASS}


def test_algorithm_roles_and_counts_stay_the_users(job: dict) -> None:
    before = example()["spec"]
    assert job["spec"]["algorithm"] == before["algorithm"]
    assert job["spec"]["storage"] == before["storage"]
    assert set(job["spec"]) == set(before)
    assert [pool["replicas"] for pool in job["spec"]["rollout"]["pools"]] == [
        pool["replicas"] for pool in before["rollout"]["pools"]
    ]


def test_the_example_is_not_changed_in_place() -> None:
    source = example()
    localise.job(source, MACHINE, namespace="demo")
    assert source == example()


def test_every_container_sees_the_checkout_read_only(job: dict) -> None:
    for role in ("trainer", "rollout", "environment", "buffer"):
        pod = job["spec"][role]["template"]["spec"]
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        assert all(localise.MOUNT in [m["mountPath"] for m in c["volumeMounts"] if m["readOnly"]] for c in containers)
        assert pod["volumes"][0]["hostPath"]["path"] == str(MACHINE.checkout)
    sidecars = {
        role: job["spec"][role]["template"]["spec"]["initContainers"][0]["name"] for role in ("trainer", "rollout")
    }
    assert sidecars == {"trainer": "agent", "rollout": "driver"}


def test_nothing_is_bought_that_only_ec2_has(job: dict) -> None:
    text = yaml.safe_dump(job)
    assert "Spot" not in text
    assert "nvidia.com/gpu" not in text


def test_the_class_permits_the_checkout_and_nothing_else() -> None:
    source = yaml.safe_load((CHECKOUT / "examples" / "node-class.yaml").read_text())
    parsed = NodeClass.model_validate({"spec": localise.node_class(source, MACHINE, namespace="demo")["spec"]})
    assert parsed.spec.permitted_host_paths == [str(MACHINE.checkout)]
    assert parsed.spec.allowed_instance_types == ["local"]
    assert parsed.spec.allowed_namespaces == ["demo"]
    assert {v.name: v.value for v in parsed.spec.defaults.env or []}["AWS_ENDPOINT_URL"] == MACHINE.aws_endpoint


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=3))
def test_a_templates_own_words_stay(variables: list[tuple[str, str]]) -> None:
    source = example()
    own = [{"name": name, "value": value} for name, value in variables]
    source["spec"]["trainer"]["template"] = {"spec": {"containers": [{"name": "main", "image": "x", "env": own}]}}
    pod = localise.job(source, MACHINE, namespace="demo")["spec"]["trainer"]["template"]["spec"]
    assert pod["containers"][0]["env"] == own
    assert "image" not in pod["containers"][0]


def test_the_example_exists() -> None:
    assert EXAMPLE.is_file()
