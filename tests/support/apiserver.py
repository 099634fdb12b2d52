"""A kube-apiserver with its etcd and nothing else: what tests of the client and the control loop need.

Real answers to server-side apply, CEL, field validation and watches, in a few seconds, without nodes.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import create_default_context

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from moerl_local.cluster.build import program_path
from moerl_local.paths import cache_dir
from support.missing import without

ADMIN_TOKEN = "admin-of-a-test"
START_SECONDS = 90


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running server; `kubeconfig` is an administrator's, `token_file` can be rewritten to lock clients out."""

    url: str
    kubeconfig: Path
    audit_log: Path
    folder: Path


@contextmanager
def api_server(folder: Path, *, etcd_flags: tuple[str, ...] = ("--unsafe-no-fsync",)) -> Iterator[ApiServer]:
    """Start both programs, wait until the server is ready, stop them at the end.

    Where they are not built, the test is skipped, or failed in CI.
    """
    port, etcd_port, peer_port = _free_ports(3)
    _write_inputs(folder)
    etcd = [
        _program("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{etcd_port}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd_port}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        "--log-level=error",
        *etcd_flags,
    ]
    server = [
        _program("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={folder / 'certs'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'sa.key'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        "--endpoint-reconciler-type=none",
        f"--audit-log-path={folder / 'audit.log'}",
        f"--audit-policy-file={folder / 'audit.yaml'}",
        "--disable-admission-plugins=ServiceAccount",
        "--watch-cache=true",
    ]
    with (folder / "log").open("wb") as log, _running(etcd, log), _running(server, log):
        url = f"https://127.0.0.1:{port}"
        _await_ready(url, folder)
        kubeconfig = write_kubeconfig(folder / "admin.kubeconfig", url, folder / "certs" / "apiserver.crt", ADMIN_TOKEN)
        yield ApiServer(url, kubeconfig, folder / "audit.log", folder)


def write_kubeconfig(path: Path, url: str, ca: Path, token: str) -> Path:
    """A kubeconfig of one cluster and one bearer token."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def _program(name: str) -> str:
    candidates = [program_path(name), *sorted(cache_dir().glob(f"*/{name}"))]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    return str(found or without(f"{name} is not built; `moerl cluster up` builds it"))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _write_inputs(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / "sa.key").write_bytes(pem)
    (folder / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
    (folder / "audit.yaml").write_text(yaml.safe_dump({**policy, "omitStages": ["RequestReceived"]}))


@contextmanager
def _running(command: list[str], log: object) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(url: str, folder: Path) -> None:
    end = time.monotonic() + START_SECONDS
    certificate = folder / "certs" / "apiserver.crt"
    while time.monotonic() < end:
        try:
            context = create_default_context(cafile=str(certificate))
            request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
            with urllib.request.urlopen(request, context=context, timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise TimeoutError(f"the API server is not ready after {START_SECONDS} s: {(folder / 'log').read_text()[-2000:]}")
