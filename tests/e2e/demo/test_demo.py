"""The demo as a person runs it, on a cluster of its own: real helm, real pods, a policy that learned."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from moerl_local.cluster.handle import Cluster
from support.local import MOERL, node_obstacle

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.torch, pytest.mark.timeout(1800)]
NAME = "demotest"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.CompletedProcess[str], Path]]:
    """The finished demo and its report's folder."""
    if obstacle := node_obstacle():
        if os.environ.get("CI"):
            pytest.fail(f"CI must run the tests with real pods, but {obstacle}")
        pytest.skip(obstacle)
    out = tmp_path_factory.mktemp("demo")
    try:
        command = [MOERL, "demo", "--cluster", NAME, "--out", str(out), "--timeout", "1200"]
        yield subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False), out
    finally:
        subprocess.run([MOERL, "cluster", "down", "--name", NAME, "--purge"], capture_output=True, check=False)


def test_it_ends_well_and_says_how_to_look_around(done: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    process, _ = done
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert "Complete" in process.stdout
    assert "Look around:" in process.stdout


def test_the_policy_learned_what_it_was_never_shown(done: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    record = json.loads((done[1] / "record.json").read_text())
    assert record["evaluation"]["before"] <= 0.3
    assert record["evaluation"]["exactMatch"] >= 0.9
    assert record["evaluation"]["prompts"] >= 256


def test_every_role_ran_as_a_pod_on_its_own_node_group(done: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    record = json.loads((done[1] / "record.json").read_text())
    assert {pod["role"] for pod in record["pods"].values()} == {"trainer", "rollout", "environment", "buffer"}
    assert len({group["name"] for group in record["node_groups"]}) == 4
    assert (done[1] / "index.html").stat().st_size > 10_000


def test_a_deleted_job_leaves_nothing_in_aws(done: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    account = {"region_name": "us-east-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
    endpoint = Cluster.load(NAME).aws_endpoint
    eks = boto3.client("eks", endpoint_url=endpoint, **account)
    ec2 = boto3.client("ec2", endpoint_url=endpoint, **account)
    assert eks.list_nodegroups(clusterName="moerl-local")["nodegroups"] == []
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
