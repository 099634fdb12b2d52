"""The chart's namespace mode: an operator that may look into one namespace only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.kube.api import Kinds
from support.emulator import Emulator
from support.operator import Audit, OperatorProcess, running_operator

from .conftest import Jobs

pytestmark = pytest.mark.e2e


def account_of(cluster: Cluster, namespace: str, watched: str, folder: Path) -> Path:
    """The account and rights that the chart makes for a release in `namespace`, and its kubeconfig."""
    rendered = cluster.helm(
        "template",
        "scoped",
        "charts/moerl-operator",
        f"--namespace={namespace}",
        "--kube-version=1.34.4",
        "--set=cluster.name=moerl-local",
        f"--set=watchNamespaces={{{watched}}}",
        "--set=fullnameOverride=scoped",
        "--show-only=templates/rbac.yaml",
        "--show-only=templates/serviceaccount.yaml",
    )
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=rendered)
    token = cluster.kubectl("create", "token", "scoped", f"--namespace={namespace}", "--duration=1h").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = folder / "scoped.kubeconfig"
    path.write_text(json.dumps(config))
    return path


async def test_with_rights_in_one_namespace_it_runs_the_jobs_of_that_namespace(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster, aws: Emulator, tmp_path: Path
) -> None:
    operator.stop()
    kubeconfig = account_of(cluster, jobs.namespace, jobs.namespace, tmp_path)
    arguments = (f"--namespace={jobs.namespace}", f"--lease-namespace={jobs.namespace}")
    audit = Audit(cluster, f"system:serviceaccount:{jobs.namespace}:scoped")
    try:
        with running_operator(cluster, tmp_path, kubeconfig=kubeconfig, arguments=arguments) as scoped:
            await jobs.create()
            running = await jobs.reaches("Running")
            assert running["status"]["display"]["trainers"] == "2/2"
            assert audit.forbidden() == []
            assert scoped.get("/readyz") == (200, "ok\n")
    finally:
        for kind in (Kinds.ROLE, Kinds.ROLE_BINDING):
            await jobs.kube.delete(kind, jobs.namespace, "scoped")
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", "scoped", "--ignore-not-found")
        operator.start()


async def test_a_second_operator_waits_for_the_lease_and_takes_over(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster, tmp_path: Path
) -> None:
    second = OperatorProcess(cluster, tmp_path)
    second.launch()
    try:
        await second.answers("/readyz")
        assert second.metric("moerl_leader") == 0
        operator.stop()
        await jobs.create()
        await jobs.reaches("Running")
        assert second.metric("moerl_leader") == 1
    finally:
        second.stop()
        operator.start()
