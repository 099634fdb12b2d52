"""The chart as real helm renders it; no cluster is needed for that."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from moerl_local.cluster import build

CHART = Path(__file__).resolve().parents[2] / "charts" / "moerl-operator"
KUBE_VERSION = "1.34.4"


@dataclass(frozen=True, slots=True)
class Answer:
    """What helm said."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The rendered objects."""
        assert self.code == 0, self.err
        return [each for each in yaml.safe_load_all(self.out) if each]

    def one(self, kind: str, name: str = "") -> dict[str, Any]:
        """The only object of a kind (and name)."""
        found = [o for o in self.objects if o["kind"] == kind and (not name or o["metadata"]["name"] == name)]
        assert len(found) == 1, [o["metadata"]["name"] for o in found]
        return found[0]


Helm = Callable[..., Answer]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Runs helm; it is built into the cache if need be."""
    program = build.build(["helm"]) / "helm"

    def run(*words: str) -> Answer:
        done = subprocess.run(
            [str(program), *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KUBECONFIG": os.devnull},
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def template(helm: Helm) -> Helm:
    """Renders the chart with some values files of ci/ and settings."""

    def render(values: Sequence[str] = ("cluster",), *settings: str, known: bool = False) -> Answer:
        words = ["template", "moerl-operator", str(CHART), "--namespace=moerl-system", f"--kube-version={KUBE_VERSION}"]
        words += [f"--values={CHART}/ci/{name}-values.yaml" for name in values]
        words += [f"--set={setting}" for setting in settings]
        if known:
            words.append("--api-versions=moerl.dev/v1alpha1/MoERLNodeClass")
        return helm(*words)

    return render
