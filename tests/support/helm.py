"""Runs real helm over the chart; rendering needs no cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind."""
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        """The only object of a kind."""
        found = self.all(kind)
        assert len(found) == 1, [each["metadata"]["name"] for each in found]
        return found[0]


def helm(*words: str, kubeconfig: str = os.devnull) -> Answer:
    """Runs helm, built into the cache if need be."""
    program = build.build(["helm"]) / "helm"
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    done = subprocess.run([str(program), *words], capture_output=True, text=True, check=False, env=environment)
    return Answer(done.returncode, done.stdout, done.stderr)


def values_file(name: str) -> str:
    """The option for a values file of the chart's ci/ folder."""
    return f"--values={CHART}/ci/{name}-values.yaml"


def render(*settings: str, values: Sequence[str] = ("cluster",), known: bool = False) -> Answer:
    """The chart rendered as release moerl-operator in moerl-system; `known`: the server has our kinds already."""
    words = ["template", "moerl-operator", str(CHART), "--namespace=moerl-system", f"--kube-version={KUBE_VERSION}"]
    words += [*map(values_file, values), *(f"--set={setting}" for setting in settings)]
    if known:
        words.append("--api-versions=moerl.dev/v1alpha1/MoERLNodeClass")
    return helm(*words)
