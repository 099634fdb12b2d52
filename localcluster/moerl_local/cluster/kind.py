"""`--engine kind`: the cluster in a Docker container, for machines where Docker runs and images can be pulled.

Untested, and it says so. Kept small: control plane and node are kind's, fake nodes are played by our kwok beside
it; there is no AWS emulator.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path

from moerl_local.cluster import account, build, kwok
from moerl_local.cluster.controlplane import Files
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.cluster.processes import Processes
from moerl_local.cluster.settings import Settings, locked
from moerl_local.paths import state_dir

ENGINE = "kind"
_IMAGE = f"kindest/node:{build.KUBERNETES_VERSION}"


def up(name: str) -> Cluster:
    """Make the kind cluster moerl-`name` and start kwok beside it; what exists stays.

    Raises:
        ClusterError: kind or Docker is missing or failed.
    """
    for program, where in {"kind": "https://kind.sigs.k8s.io", "docker": "https://docs.docker.com/engine"}.items():
        if shutil.which(program) is None:
            raise ClusterError(f"--engine kind needs {program}: install it from {where}, or leave --engine out")
    bin_dir = build.build(["kubectl", "helm", "kwok"])
    with locked(name):
        settings = Settings(name, index=None)
        files = Files(settings.folder)
        admin = files.kubeconfig("admin")
        admin.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _name(name) not in _kind("get", "clusters").split():
            _kind(
                "create", "cluster", "--name", _name(name), "--image", _IMAGE, "--kubeconfig", str(admin), "--wait=120s"
            )
        settings.save()
        kubectl = Kubectl(bin_dir / "kubectl", admin)
        server = _server(kubectl, files.pki / "ca.crt")
        shutil.copy(admin, files.kubeconfig("kwok"))
        files.config("kwok.yaml").parent.mkdir(parents=True, exist_ok=True)
        kwok.start(settings, Processes(settings.folder), bin_dir, kubectl)
        account.make(settings, kubectl, server=server)
        cluster = _describe(settings, bin_dir, server)
        cluster.save()
        return cluster


def delete(name: str) -> None:
    """Delete the kind cluster, if there is one."""
    if _uses_kind(name):
        _kind("delete", "cluster", "--name", _name(name))


def _describe(settings: Settings, bin_dir: Path, server: str) -> Cluster:
    files = Files(settings.folder)
    return Cluster(
        name=settings.name,
        server=server,
        bridge_address="127.0.0.1",
        pod_cidr="10.244.0.0/16",
        service_cidr="10.96.0.0/16",
        bin_dir=bin_dir,
        admin_kubeconfig=files.kubeconfig("admin"),
        operator_kubeconfig=files.kubeconfig("operator"),
        containerd_socket=None,
        node_name=f"{_name(settings.name)}-control-plane",
        audit_log=files.audit_log,
        aws_endpoint=None,
        engine=ENGINE,
    )


def _server(kubectl: Kubectl, authority: Path) -> str:
    """The API server's URL; writes its certificate authority to `authority`."""
    config = json.loads(kubectl.run("config", "view", "--raw", "-o", "json"))
    target: dict[str, str] = config["clusters"][0]["cluster"]
    authority.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority.write_bytes(b64decode(target["certificate-authority-data"]))
    return target["server"]


def _uses_kind(name: str) -> bool:
    try:
        return Cluster.load(name).engine == ENGINE
    except ClusterError:
        return (
            (state_dir() / name).is_dir()
            and shutil.which("kind") is not None
            and _name(name) in _kind("get", "clusters")
        )


def _name(name: str) -> str:
    return f"moerl-{name}"


def _kind(*words: str) -> str:
    done = subprocess.run(["kind", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no output"]
        raise ClusterError(f"`kind {' '.join(words[:2])}` failed: {said[-1]}")
    return done.stdout
