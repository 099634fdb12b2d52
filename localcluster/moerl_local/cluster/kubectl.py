"""Runs the cluster's own kubectl, for the few things that the launcher itself asks of the API server."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from moerl_local.cluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with one kubeconfig."""

    binary: Path
    kubeconfig: Path

    def run(self, *words: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Its standard output.

        Raises:
            ClusterError: it failed; carries what it said.
        """
        command = [str(self.binary), f"--kubeconfig={self.kubeconfig}", *words]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"`kubectl {' '.join(words)}` did not answer within {timeout_s:.0f} s") from error
        if done.returncode != 0:
            raise ClusterError(f"`kubectl {' '.join(words)}` failed: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: dict[str, object]) -> None:
        """Server-side apply of `objects`."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        words = ("apply", "--server-side", "--force-conflicts", "--field-manager=moerl-local", "-f", "-")
        self.run(*words, stdin=json.dumps(items))
