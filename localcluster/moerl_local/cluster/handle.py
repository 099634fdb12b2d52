"""The one way for other code to find a running cluster."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.paths import state_dir

DEFAULT_NAME = "local"
FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of this machine; the fields are those of its cluster.json, which any program may read."""

    name: str
    server: str
    bridgeAddress: str  # noqa: N815 (the names of the JSON file)
    podCIDR: str  # noqa: N815
    serviceCIDR: str  # noqa: N815
    binDir: str  # noqa: N815
    adminKubeconfig: str  # noqa: N815
    operatorKubeconfig: str  # noqa: N815
    containerdSocket: str | None  # noqa: N815
    nodeName: str | None  # noqa: N815
    auditLog: str  # noqa: N815
    awsEndpoint: str | None  # noqa: N815
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
        return cls(**{each.name: content.get(each.name) for each in fields(cls)})

    def save(self) -> None:
        """Write cluster.json."""
        path = state_dir() / self.name / FILE
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(self), indent=1))
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
        return Kubectl(Path(self.binDir) / "kubectl", Path(self.adminKubeconfig))

    def helm(self, *words: str) -> str:
        """Run helm as admin and return its output.

        Raises:
            ClusterError: it failed; carries what it said.
        """
        command = [str(Path(self.binDir) / "helm"), f"--kubeconfig={self.adminKubeconfig}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"`helm {' '.join(words)}` failed: {done.stderr.strip()}")
        return done.stdout
