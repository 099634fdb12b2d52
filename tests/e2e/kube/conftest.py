"""The client tests talk to the bare server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moerl_operator.kube.api import KubeApi
from moerl_operator.kube.client import connect
from support.apiserver import ApiServer


@pytest.fixture
def server(bare_server: ApiServer) -> ApiServer:
    return bare_server


@pytest.fixture
async def kube(bare_server: ApiServer) -> AsyncIterator[KubeApi]:
    """An administrator's client of the bare server."""
    async with connect(bare_server.kubeconfig) as client:
        yield client
