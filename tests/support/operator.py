"""The operator as a program of its own, with its least-privileged account, against a local cluster and its emulator."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moerl_local.cluster.controlplane import read_audit
from moerl_local.cluster.handle import Cluster
from support.waiting import until

ACCOUNT = "system:serviceaccount:moerl-system:moerl-operator"
MOERL = str(Path(sys.executable).with_name("moerl"))
WRITES = ("create", "update", "patch", "delete", "deletecollection")
START_SECONDS = 120  # a loaded machine takes half a minute for the imports alone


class OperatorProcess:
    """`moerl operator run`; can be ended and started again."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        kubeconfig: Path | None = None,
        arguments: tuple[str, ...] = (),
        **env: str,
    ) -> None:
        self._kubeconfig = kubeconfig or cluster.operator_kubeconfig
        self._arguments = arguments
        self.log_file = folder / "operator.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._env = {
            **os.environ,
            "AWS_ENDPOINT_URL": cluster.aws_endpoint or "",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process."""
        command = [
            MOERL,
            "operator",
            "run",
            f"--kubeconfig={self._kubeconfig}",
            "--cluster-name=moerl-local",
            f"--port={self.port}",
            "--host=127.0.0.1",
            "--log-format=text",
            *self._arguments,
        ]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def start(self) -> None:
        """Start, and wait until it leads and is ready."""
        self.launch()
        assert self.process is not None
        end = time.monotonic() + START_SECONDS
        while self.get("/readyz")[0] != 200 or self.metric("moerl_leader") != 1:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the operator did not become ready:\n{self.log()}")
            time.sleep(0.2)

    async def answers(self, path: str) -> None:
        """Wait until a page is answered with 200."""

        async def well() -> bool:
            return self.get(path)[0] == 200

        await until(f"{path} of the operator is 200", well, seconds=START_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it; the exit code."""
        assert self.process is not None
        self.process.send_signal(how)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def restart(self) -> None:
        """SIGTERM, and a new process."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Everything it has said."""
        return self.log_file.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """A page of its HTTP port; (0, '') when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, labels: str = "") -> float:
        """The sum of a metric's samples whose labels contain `labels`."""
        lines = self.get("/metrics")[1].splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name and labels in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@contextmanager
def running_operator(cluster: Cluster, folder: Path, **options: Any) -> Iterator[OperatorProcess]:
    """An operator for the life of the block."""
    operator = OperatorProcess(cluster, folder, **options)
    try:
        operator.start()
        yield operator
    finally:
        if operator.process is not None and operator.process.poll() is None:
            operator.stop()


def install_rights(cluster: Cluster) -> None:
    """CRDs and the account's rights, as the chart has them, without the chart's Deployment."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "crds/")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    rights = cluster.helm(
        "template",
        "moerl-operator",
        "charts/moerl-operator",
        "--namespace=moerl-system",
        "--kube-version=1.34.4",
        "--set=cluster.name=moerl-local",
        "--show-only=templates/rbac.yaml",
    )
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rights)


class Audit:
    """What an account has done since a moment, from the API server's audit log."""

    def __init__(self, cluster: Cluster, account: str = ACCOUNT) -> None:
        self._path = cluster.audit_log
        self._account = account
        self._start = len(read_audit(self._path))

    def requests(self) -> list[dict[str, Any]]:
        """Finished requests of the account."""
        return [
            event
            for event in read_audit(self._path)[self._start :]
            if (event.get("user") or {}).get("username") == self._account  # type: ignore[attr-defined]
            and event.get("stage") == "ResponseComplete"
        ]

    def verbs(self) -> Counter[str]:
        """All requests by verb and resource."""
        return Counter(f"{event['verb']} {(event.get('objectRef') or {}).get('resource')}" for event in self.requests())

    def writes(self) -> Counter[str]:
        """Writes by verb and resource, those of the leader's Lease and dry runs left out."""
        return Counter(
            f"{event['verb']} {event['objectRef']['resource']}"
            for event in self.requests()
            if event["verb"] in WRITES
            and event["objectRef"]["resource"] != "leases"
            and "dryRun=All" not in str(event["requestURI"])
        )

    def forbidden(self) -> list[str]:
        """Requests that the account had no right to."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.requests()
            if (event.get("responseStatus") or {}).get("code") == 403
        ]
