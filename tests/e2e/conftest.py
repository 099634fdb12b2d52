"""A bare API server for the tests that need its answers but no nodes and no controllers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.apiserver import ApiServer, api_server


@pytest.fixture(scope="session")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A kube-apiserver with its etcd, for this test session."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        yield running
