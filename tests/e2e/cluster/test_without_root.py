"""Without root, or not on Linux, there is still a real control plane with fake nodes, on loopback only."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator

import pytest

from moerl_local.cluster import kwok, launcher, leftovers, network
from moerl_local.cluster import settings as setting
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.launcher import Wanted
from moerl_local.paths import state_dir
from support.fake_nodes import condition, eventually

pytestmark = pytest.mark.e2e


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(network, "usable", lambda: False)
    made = f"t{uuid.uuid4().hex[:8]}"
    yield made
    launcher.down(made, purge=True)
    assert leftovers.find(state_dir() / made, None) == []


def test_fake_nodes_run_on_loopback(name: str) -> None:
    cluster = launcher.up(name, Wanted(aws=False))
    assert cluster.server.startswith("https://127.0.0.1:")
    assert cluster.node_name is None
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(kwok.node("n")))
    ready = ("get", "node", "n", "-o", "json")
    eventually(lambda: condition(json.loads(cluster.kubectl(*ready)), "Ready").get("status") == "True")


def test_port_taken_by_another_program_is_said(name: str) -> None:
    launcher.up(name, Wanted(aws=False))
    launcher.down(name)
    settings = setting.load_or_choose(name)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings.ports["apiserver"] = other.getsockname()[1]
        settings.save()
        with pytest.raises(ClusterError, match=f"port {settings.ports['apiserver']} of 127.0.0.1, .* is taken"):
            launcher.up(name, Wanted(aws=False))
    assert leftovers.find(state_dir() / name, None) == []
