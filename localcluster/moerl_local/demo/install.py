"""Puts the operator into the cluster: by helm as a pod, or as a process beside the cluster.

The pod runs this checkout: the base image with the checkout mounted read-only. An image built by the
Dockerfile can take its place (`--operator-image`); it is what a real installation uses.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster
from moerl_local.demo import localise, manifests
from moerl_local.demo.errors import DemoError
from moerl_local.demo.progress import Steps

RELEASE = "moerl-operator"
NAMESPACE = "moerl-system"
READY_SECONDS = 300


@contextmanager
def operator(
    cluster: Cluster,
    machine: localise.Machine,
    steps: Steps,
    *,
    namespace: str,
    image: str | None = None,
    out_of_cluster: bool = False,
) -> Iterator[None]:
    """The custom resources, the node class and a running operator; a process is ended at the end, a pod stays.

    Raises:
        DemoError: helm refused, or the operator did not become ready; carries what is known.
    """
    with steps.step("operator") as entry:
        try:
            _helm(cluster, machine, image=image)
            if out_of_cluster:
                cluster.kubectl("-n", NAMESPACE, "scale", f"deployment/{RELEASE}", "--replicas=0")
            source = yaml.safe_load((manifests.CHECKOUT / "examples" / "node-class.yaml").read_text())
            node_class = localise.node_class(source, machine, namespace=namespace)
            cluster.kubectl("apply", "-f", "-", stdin=json.dumps(node_class))
        except ClusterError as error:
            raise DemoError(str(error)) from error
        process = _process(cluster, machine) if out_of_cluster else None
        try:
            if not process:
                _await_pod(cluster)
            entry["note"] = "a process beside the cluster" if process else f"pod in {NAMESPACE}"
        except BaseException:
            _end(process)
            raise
    try:
        yield
    finally:
        _end(process)


EKS_CLUSTER = "moerl-local"  # the one that the emulator has from the start


def values(machine: localise.Machine, *, image: str | None) -> dict[str, Any]:
    """The chart's values for this machine."""
    repository, _, tag = (image or machine.image).rpartition(":")
    out: dict[str, Any] = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "cluster": {"name": EKS_CLUSTER},
        "extraEnv": [{"name": name, "value": value} for name, value in _aws(machine).items()],
    }
    if not image:
        out |= {
            "command": ["python", "-m", "moerl_operator"],
            "args": ["operator", "run"],
            "extraEnv": [{"name": name, "value": value} for name, value in machine.environment.items()],
            "extraVolumes": [machine.volume],
            "extraVolumeMounts": [machine.mount],
            # A changed operator is a new pod, though nothing else in the chart changes.
            "podAnnotations": {"moerl.dev/checkout": _digest(manifests.CHECKOUT / "operator")},
        }
    return out


def _digest(folder: Path) -> str:
    """Of the Python files below `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _aws(machine: localise.Machine) -> dict[str, str]:
    return {name: value for name, value in machine.environment.items() if name.startswith("AWS_")}


def _helm(cluster: Cluster, machine: localise.Machine, *, image: str | None) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values(machine, image=image), file)
        file.flush()
        cluster.helm(
            "upgrade", "--install", RELEASE, str(manifests.CHART), "--namespace", NAMESPACE, "--create-namespace",
            "--take-ownership", "--values", file.name,
        )  # fmt: skip
    # helm returns once the definitions are stored; the server serves the types a moment later.
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def _await_pod(cluster: Cluster) -> None:
    try:
        words = ("-n", NAMESPACE, "rollout", "status", f"deployment/{RELEASE}", f"--timeout={READY_SECONDS}s")
        cluster.admin.run(*words, timeout_s=READY_SECONDS + 10)
    except ClusterError as error:
        said = _last_words(cluster)
        raise DemoError(f"the operator's pod did not become ready within {READY_SECONDS} s: {said or error}") from error


def _last_words(cluster: Cluster) -> str:
    try:
        lines = cluster.kubectl("-n", NAMESPACE, "logs", f"deployment/{RELEASE}", "--tail=3").strip().splitlines()
    except ClusterError as error:
        return str(error)
    return " | ".join(lines)


def _process(cluster: Cluster, machine: localise.Machine) -> subprocess.Popen[bytes]:
    log = cluster.folder / "operator-demo.log"
    command = [
        str(Path(sys.executable).with_name("moerl")),
        "operator",
        "run",
        "--kubeconfig",
        str(cluster.operator_kubeconfig),
    ]
    more = {
        "MOERL_CLUSTER_NAME": EKS_CLUSTER,
        "MOERL_INSTALLATION": f"{NAMESPACE}.{RELEASE}",
        "MOERL_NAMESPACE": NAMESPACE,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **_aws(machine), **more}
        )
    time.sleep(3)
    if process.poll() is not None:
        raise DemoError(f"the operator ended at once: {log.read_text().strip().splitlines()[-1:]} (all of it: {log})")
    return process


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
