"""The trainer's agent against a real API server: the report arrives, rarely enough, with the least rights."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from moerl_runtime.agent import progress
from support.apiserver import ADMIN_TOKEN, ApiServer, api_server
from support.redis import free_port

pytestmark = pytest.mark.e2e

NAMESPACE, ACCOUNT, REPORT = "default", "trainer", "j-report"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with an account that may patch one ConfigMap and nothing else."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        call(running, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [REPORT], "verbs": ["patch"]}
        call(running, f"{rbac}/roles", {"metadata": {"name": "report"}, "rules": [rule]})
        call(
            running,
            f"{rbac}/rolebindings",
            {
                "metadata": {"name": "report"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "report"},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
            },
        )
        yield running


def call(server: ApiServer, path: str, body: dict[str, Any] | None = None) -> Any:
    """An administrator's GET or POST."""
    request = urllib.request.Request(
        server.url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=str(server.folder / "certs" / "apiserver.crt"))
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code not in (403, 404) or body is None:  # the namespace is made a moment after start
                raise
            time.sleep(0.1)
    raise AssertionError(path)


def config_map(server: ApiServer) -> dict[str, Any]:
    """A fresh, empty report, as the operator makes it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    try:
        call(server, f"{path}/{REPORT}")
    except urllib.error.HTTPError:
        call(server, path, {"metadata": {"name": REPORT, "annotations": {"moerl.dev/revision": "x"}}, "data": {}})
    found: dict[str, Any] = call(server, f"{path}/{REPORT}")
    return found


def report(server: ApiServer) -> dict[str, Any]:
    """report.json as it is now; empty if there is none."""
    found: dict[str, Any] = json.loads((config_map(server).get("data") or {}).get("report.json", "{}"))
    return found


@contextmanager
def agent(server: ApiServer, tmp_path: Path, *, name: str = REPORT, port: int) -> Iterator[subprocess.Popen[str]]:
    """The agent as a pod would run it, with the account's token."""
    account = tmp_path / "account"
    account.mkdir()
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = call(server, path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    (account / "token").write_text(token["status"]["token"])
    (account / "ca.crt").write_bytes((server.folder / "certs" / "apiserver.crt").read_bytes())
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(urlsplit(server.url).port),
        "MOERL_SERVICE_ACCOUNT_DIR": str(account),
        "MOERL_NAMESPACE": NAMESPACE,
        "MOERL_REPORT": name,
        "MOERL_ATTEMPT": "2",
        "MOERL_RUN_DIR": str(run),
        "MOERL_BIND": "127.0.0.1",
        "MOERL_AGENT_PORT": str(port),
        "MOERL_BUFFER_URL": "redis://127.0.0.1:1/0",
    }
    command = [sys.executable, "-m", "moerl_runtime", "agent"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def eventually(condition: Any, *, seconds: float = 30.0) -> None:
    """Poll until true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def metrics(port: int) -> str:
    """The agent's metrics; empty while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def state(phase: progress.Phase, iteration: int) -> progress.Progress:
    """Some progress."""
    return progress.Progress(phase=phase, iteration=iteration, iterations=9, policy_version=iteration)


def test_the_report_arrives_rarely_and_once_more_at_the_end(server: ApiServer, tmp_path: Path) -> None:
    config_map(server)
    with agent(server, tmp_path, port=free_port()) as child:
        eventually(lambda: report(server).get("phase") == "Starting")
        assert report(server)["attempt"] == 2
        before = config_map(server)["metadata"]["resourceVersion"]
        for iteration in range(1, 6):
            progress.write(state("Training", iteration), tmp_path / "run")
            time.sleep(0.4)
        assert config_map(server)["metadata"]["resourceVersion"] == before, "at most one write every 15 s"
        progress.write(state("Finished", 9), tmp_path / "run")
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 143
    assert (report(server)["phase"], report(server)["iteration"]) == ("Finished", 9)
    assert config_map(server)["metadata"]["annotations"] == {"moerl.dev/revision": "x"}, "nothing else is touched"


def test_a_refusing_api_server_never_ends_the_agent(server: ApiServer, tmp_path: Path) -> None:
    port = free_port()
    with agent(server, tmp_path, name="another-report", port=port) as child:
        eventually(lambda: 'moerl_reports_total{result="failed"} 1.0' in metrics(port))
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 143
        assert child.stderr is not None
        errors = child.stderr.read()
    assert "answered 403" in errors
    assert 'cannot patch resource "configmaps"' in errors
    assert "Traceback" not in errors
