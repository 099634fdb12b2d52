"""The one way for other code to find a running cluster."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.paths import state_dir

DEFAULT_NAME = "local"
FILE = "cluster.json"
_PATHS = ("bin_dir", "admin_kubeconfig", "operator_kubeconfig", "containerd_socket", "audit_log")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of this machine, as written in its cluster.json (there in camelCase), which any program may read.

    Attributes:
        server: URL of the API server.
        bridge_address: the machine's address that its pods reach.
        operator_kubeconfig: account of the operator; what it may do, the chart says.
        containerd_socket: None without the real node, as `node_name`.
        aws_endpoint: URL of the AWS emulator, None when it does not run.
        engine: `local` or `kind`.
    """

    name: str
    server: str
    bridge_address: str
    pod_cidr: str
    service_cidr: str
    bin_dir: Path
    admin_kubeconfig: Path
    operator_kubeconfig: Path
    containerd_socket: Path | None
    node_name: str | None
    audit_log: Path
    aws_endpoint: str | None
    engine: str

    @classmethod
    def load(cls, name: str = DEFAULT_NAME) -> Cluster:
        """The cluster `name`.

        Raises:
            ClusterError: there is none; says how to start it.
        """
        path = state_dir() / name / FILE
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError as error:
            option = "" if name == DEFAULT_NAME else f" --name {name}"
            raise ClusterError(f"there is no cluster {name!r}; start one with `moerl cluster up{option}`") from error
        values: dict[str, Any] = {each.name: content.get(_json_name(each.name)) for each in fields(cls)}
        for key in _PATHS:
            values[key] = Path(values[key]) if values[key] else None
        return cls(**values)

    def save(self) -> None:
        """Write cluster.json."""
        path = state_dir() / self.name / FILE
        content = {_json_name(each.name): getattr(self, each.name) for each in fields(self)}
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(content, indent=1, default=str))
        unfinished.rename(path)

    @property
    def folder(self) -> Path:
        """Where its state lies."""
        return state_dir() / self.name

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as admin and return its output.

        Raises:
            ClusterError: it failed; carries what it said.
        """
        return self.admin.run(*words, stdin=stdin)

    @property
    def admin(self) -> Kubectl:
        """kubectl as admin."""
        return Kubectl(self.bin_dir / "kubectl", self.admin_kubeconfig)

    def helm(self, *words: str) -> str:
        """Run helm as admin and return its output.

        Raises:
            ClusterError: it failed; carries what it said.
        """
        command = [str(self.bin_dir / "helm"), f"--kubeconfig={self.admin_kubeconfig}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"`helm {' '.join(words)}` failed: {done.stderr.strip()}")
        return done.stdout


def _json_name(field: str) -> str:
    """`pod_cidr` is `podCIDR`, `bin_dir` is `binDir`."""
    first, *rest = field.split("_")
    return first + "".join("CIDR" if word == "cidr" else word.capitalize() for word in rest)
