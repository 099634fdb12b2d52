"""The bench: a local cluster with fake nodes, and two controllers beside it under accounts of their own.

No account is admin: API priority and fairness exempts admins, so a figure taken as admin is not one. Each
controller is a process outside the cluster; JobSet is built from the version that go.mod pins.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from moerl_bench import shapes
from moerl_bench.errors import BenchError
from moerl_local.cluster import build, launcher, pki
from moerl_local.cluster.controlplane import Files
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "bench"
OPERATOR = "system:serviceaccount:moerl-system:moerl-operator"
JOBSET = f"system:serviceaccount:{NAMESPACE}:jobset"
JOBSET_VERSION = "v0.10.1"
_WANTED = launcher.Wanted(node=False, aws=True, time_scale=600.0)


def now() -> datetime:
    """The time, to compare with the audit log."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Started:
    """A running cluster and how long a warm start of it took, in seconds."""

    cluster: Cluster
    warm_start: float


def start(name: str) -> Started:
    """Bring the cluster up twice: the second, warm start is the measured one.

    Raises:
        BenchError: it cannot be started; says why.
    """
    try:
        launcher.up(name, _WANTED)
        launcher.reset(name, _WANTED)
        launcher.down(name, purge=False)
        began = time.monotonic()
        launcher.up(name, _WANTED)
        return Started(Cluster.load(name), round(time.monotonic() - began, 2))
    except ClusterError as error:
        raise BenchError(str(error)) from error


def furnish(cluster: Cluster) -> Path:
    """Nodes, custom resources, rights and accounts; returns the kubeconfig of the account that makes the load."""
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *_account("load", "cluster-admin"),
        *_account("jobset", "cluster-admin"),
    ]
    for path in (ROOT / "crds").glob("*.yaml"):
        objects += [document for document in yaml.safe_load_all(path.read_text()) if document]
    objects += [document for document in yaml.safe_load_all(_jobset_crd().read_text()) if document]
    for one in objects:
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(one))
    chart = ("template", "moerl-operator", str(ROOT / "charts" / "moerl-operator"), "--namespace", "moerl-system")
    settings = ("--kube-version", build.KUBERNETES_VERSION, "--set", "cluster.name=moerl-local")
    rendered = cluster.helm(*chart, *settings, "--show-only", "templates/rbac.yaml")
    cluster.kubectl("apply", "-n", "moerl-system", "-f", "-", stdin=rendered)
    node_class = yaml.safe_load((ROOT / "examples" / "node-class.yaml").read_text())
    node_class["metadata"]["name"] = "bench"
    node_class["spec"] |= {"allowedNamespaces": [NAMESPACE]}
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(node_class))
    for one in shapes.nodes():
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(one))
    cluster.kubectl("wait", "--for=condition=Ready", "node", "-l", shapes.SELECTOR, "--timeout=60s")
    return _kubeconfig(cluster, "load")


def _account(name: str, role: str) -> list[dict[str, Any]]:
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"bench-{name}"},
            "subjects": [subject],
            "roleRef": reference,
        },
    ]


def _kubeconfig(cluster: Cluster, account: str) -> Path:
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", account, "--duration=4h").strip()
    path = cluster.folder / f"bench-{account}.kubeconfig"
    authority = Files(cluster.folder).pki / "ca.crt"
    pki.write_kubeconfig(path, server=cluster.server, authority=authority, user=account, token=token)
    return path


def _jobset_crd() -> Path:
    folder = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset"],
        cwd=build.GO_DIR / "jobset",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
    )
    path = Path(folder.stdout.strip()) / "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
    if folder.returncode or not path.is_file():
        raise BenchError("JobSet's sources are not in Go's module cache: run `moerl cluster build jobset`")
    return path


@contextmanager
def operator(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """This project's operator as a process, with the rights that the chart grants."""
    command = [
        str(Path(sys.executable).with_name("moerl")),
        "operator",
        "run",
        "--kubeconfig",
        str(cluster.operator_kubeconfig),
    ]
    more = {
        "MOERL_CLUSTER_NAME": "moerl-local",
        "MOERL_INSTALLATION": "bench",
        "MOERL_NAMESPACE": "moerl-system",
        "MOERL_HTTP_HOST": "127.0.0.1",
        "MOERL_HTTP_PORT": str(_free_ports(1)[0]),
        "AWS_ENDPOINT_URL": str(cluster.aws_endpoint),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    with _process("operator", command, more, cluster) as process:
        _await_leader(cluster, process)
        yield process


@contextmanager
def jobset(cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    """JobSet's controller as a process, without webhooks (the objects spell out what they would default)."""
    try:
        build.build(["jobset"])
    except ClusterError as error:
        raise BenchError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="moerl-jobset-") as folder:
        ports = _free_ports(2)
        pki.Authority(Path(folder), "webhook").issue("tls", "webhook", addresses=["127.0.0.1"])
        config = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{ports[0]}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": ports[1], "certDir": folder},
        }
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [str(build.program_path("jobset")), f"--config={path}", "--zap-log-level=error"]
        more = {"KUBECONFIG": str(_kubeconfig(cluster, "jobset"))}
        with _process("jobset", command, more, cluster) as process:
            time.sleep(5)
            if process.poll() is not None:
                raise BenchError(f"JobSet's controller ended: see {cluster.folder / 'bench-jobset.log'}")
            yield process


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextmanager
def _process(
    name: str, command: list[str], more: dict[str, str], cluster: Cluster
) -> Iterator[subprocess.Popen[bytes]]:
    log = cluster.folder / f"bench-{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **more}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


def _await_leader(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    """Until the operator holds its Lease afresh: from then on it works."""
    began = now().isoformat()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the operator ended: see {cluster.folder / 'bench-operator.log'}")
        leases = json.loads(cluster.kubectl("-n", "moerl-system", "get", "lease", "-o", "json"))["items"]
        if any(lease["spec"].get("holderIdentity") and lease["spec"].get("renewTime", "") > began for lease in leases):
            return
        time.sleep(0.3)
    raise BenchError(f"the operator did not take its Lease within 60 s: see {cluster.folder / 'bench-operator.log'}")


def memory_mib(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Resident memory now and at most, in MiB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key: round(int(fields[field].split()[0]) / 1024, 1) for key, field in (("now", "VmRSS"), ("peak", "VmHWM"))}
