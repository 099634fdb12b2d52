"""The client tests need an API server and nothing more, so they start one without the rest of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from moerl_operator.kube.api import KubeApi
from moerl_operator.kube.client import connect
from support.apiserver import ApiServer, api_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A kube-apiserver of this test session, without nodes and controllers."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        yield running


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[KubeApi]:
    """An administrator's client of `server`."""
    async with connect(server.kubeconfig) as client:
        yield client
