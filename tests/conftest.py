"""Fixtures of all tests: the local cluster, its namespaces and its AWS emulator.

An e2e test asks for `cluster` (a real API server with fake nodes), one that needs real pods for
`node_cluster`. The cluster is started once per session, on demand, under a name of its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moerl_local.cluster.handle import Cluster
    from moerl_operator.kube.api import KubeApi

ROOT = Path(__file__).resolve().parents[1]

# Kernels run by Triton's interpreter, on the CPU. Triton reads this once, when it is first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def _no_foreign_accounts() -> Iterator[None]:
    """Nothing a person is logged in to can be reached by accident: no kubeconfig, no AWS profile."""
    patch = pytest.MonkeyPatch()
    patch.setenv("KUBECONFIG", os.devnull)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        patch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(name, value)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running local cluster with the AWS emulator; with the real node where this machine can have one."""
    from support.local import running_cluster

    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def node_cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster with its real node; skipped where that cannot be, except in CI, where it must be."""
    from support.local import node_obstacle
    from support.missing import without

    if obstacle := node_obstacle():
        without(obstacle)
    running: Cluster = request.getfixturevalue("cluster")
    assert running.node_name, f"no real node: `moerl cluster down --name {running.name}`, then again"
    return running


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeApi]:
    """The API as cluster admin."""
    from moerl_operator.kube.client import connect

    async with connect(cluster.admin_kubeconfig) as api:
        yield api


@pytest.fixture
async def namespace(kube: KubeApi) -> AsyncIterator[str]:
    """A namespace of the test's own, deleted afterwards."""
    from moerl_operator.kube.api import Kinds

    name = f"t-{secrets.token_hex(4)}"
    await kube.create(Kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await kube.delete(Kinds.NAMESPACE, None, name)
