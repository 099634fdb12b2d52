"""The image of the Dockerfile, installed by the chart with real helm, does its work as a pod with its own rights."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from moerl_local.cluster.handle import Cluster
from moerl_local.images import build, load
from moerl_operator.kube.api import Kinds, KubeApi
from support.helm import CHART, Answer, helm
from support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.node, pytest.mark.timeout(1200)]
NAME = "moerl-operator"


@pytest.fixture(scope="module")
def image(node_cluster: Cluster) -> str:
    """The operator's image in the node's containerd."""
    made = build.ensure("operator", say=print)
    assert node_cluster.containerd_socket
    load.load(made.path, Path(node_cluster.containerd_socket))
    return made.tag


@pytest.fixture
async def installed(node_cluster: Cluster, kube: KubeApi, image: str, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """(release, namespace) of an installation that runs the jobs of its own namespace only."""
    namespace = release = f"chart-{secrets.token_hex(3)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await kube.create(
        Kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    )
    repository, _, tag = image.partition(":")
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
                "cluster": {"name": "moerl-local"},
                "aws": {"region": "us-east-1", "endpointUrl": str(node_cluster.aws_endpoint)},
                "extraEnv": [{"name": f"AWS_{key}", "value": "test"} for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")],
                "watchNamespaces": [namespace],
                "priorityClassName": "",
            }
        )
    )
    config = str(node_cluster.admin_kubeconfig)
    try:
        # Other tests may have applied the definitions already.
        answer = await asyncio.to_thread(
            helm, "install", release, str(CHART), f"--namespace={namespace}", f"--values={values}",
            "--take-ownership", "--wait", "--timeout=180s", kubeconfig=config,
        )  # fmt: skip
        assert answer.code == 0, answer.err + said(node_cluster, namespace, release)
        yield release, namespace
    finally:
        await asyncio.to_thread(helm, "uninstall", release, f"--namespace={namespace}", kubeconfig=config)
        await kube.delete(Kinds.NAMESPACE, None, namespace)


def said(cluster: Cluster, namespace: str, release: str) -> str:
    """The operator's last words."""
    try:
        return cluster.kubectl("-n", namespace, "logs", f"deployment/{release}-{NAME}", "--tail=20")
    except Exception as error:
        return str(error)


async def test_it_runs_restricted_and_judges_a_job_with_its_own_rights(
    node_cluster: Cluster, kube: KubeApi, installed: tuple[str, str]
) -> None:
    release, namespace = installed
    answer: Answer = await asyncio.to_thread(
        helm, "test", release, f"--namespace={namespace}", "--timeout=120s",
        kubeconfig=str(node_cluster.admin_kubeconfig),
    )  # fmt: skip
    assert answer.code == 0, answer.out + answer.err

    await kube.create(Kinds.MOERL_JOB, job(namespace))

    async def judged() -> str | None:
        found = await kube.get(Kinds.MOERL_JOB, namespace, "j") or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "Accepted" and c["status"] == "False"), None)

    message = await until("the job is judged", judged, seconds=60)
    assert "MoERLNodeClass nosuch does not exist" in message
    await kube.delete(Kinds.MOERL_JOB, namespace, "j")
    lines = said(node_cluster, namespace, release)
    assert "Forbidden" not in lines
    assert "Traceback" not in lines


async def test_the_image_has_no_torch_and_no_root(
    node_cluster: Cluster, kube: KubeApi, installed: tuple[str, str]
) -> None:
    release, namespace = installed
    program = (
        "import getpass, importlib.util, json, os, sys; print(json.dumps([os.getuid(), getpass.getuser(), os.getcwd(), "
        "sys.flags.safe_path, importlib.util.find_spec('torch') is None, os.access('/opt', os.W_OK)]))"
    )
    answer = await asyncio.to_thread(
        node_cluster.kubectl, "-n", namespace, "exec", f"deployment/{release}-{NAME}", "--", "python", "-c", program
    )
    assert yaml.safe_load(answer) == [65532, "moerl", "/var/lib/moerl", True, True, False]


def job(namespace: str) -> dict[str, Any]:
    """A job of framework Custom whose class does not exist."""
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["x"]}]}}
    nodes = {"provisioner": "Existing", "nodeSelector": {"a": os.urandom(4).hex()}, "nodeClassName": "nosuch"}
    return {
        "apiVersion": "moerl.dev/v1alpha1",
        "kind": "MoERLJob",
        "metadata": {"name": "j", "namespace": namespace},
        "spec": {
            "framework": {"type": "Custom"},
            "trainer": {"nodes": {**nodes, "count": 1}, "template": template},
            "rollout": {"pools": [{"name": "p", "replicas": 1, "nodes": nodes}], "template": template},
            "buffer": {"nodes": nodes},
        },
    }
