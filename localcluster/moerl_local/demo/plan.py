"""The steps of the demo and how long each takes, said before anything is done.

`make demo` runs this file with whatever Python is there, before the virtual environment exists, so it
uses nothing but the standard library. The times are estimates for two cores; the report shows the real ones.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Step(NamedTuple):
    """One step: its key in the report, what it does, and its usual time on a first and on a later run."""

    key: str
    title: str
    cold: str
    warm: str


STEPS = (
    Step("packages", "Debian packages: containerd, runc, CNI plugins, debootstrap", "1 min", "0 s"),
    Step("python", "Python packages into .venv (torch is most of it), while Go compiles", "2 min", "0 s"),
    Step("programs", "Kubernetes, etcd, kwok, helm and CoreDNS, built from Go modules", "9 min", "0 s"),
    Step("prepare", "Base image by debootstrap and a warm-start model, while Go compiles", "1 min", "0 s"),
    Step("cluster", "Start the cluster: control plane, one real node, AWS emulator", "10 s", "6 s"),
    Step("image", "Load the base image into containerd", "5 s", "3 s"),
    Step("operator", "helm install: custom resources, operator pod", "5 s", "5 s"),
    Step("upload", "Upload the warm-start model to the emulator's S3", "1 s", "1 s"),
    Step("job", "kubectl apply: node groups, five roles in pods, training until Complete", "2 min", "2 min"),
    Step("evaluate", "Download the final policy, load it, ask prompts it never trained on", "10 s", "5 s"),
    Step("report", "Write demo-report/index.html", "1 s", "1 s"),
)
TITLES = {step.key: step.title for step in STEPS}


def text() -> str:
    """The plan as plain lines."""
    lines = ["moerl demo trains a tiny Mixture-of-Experts model with GRPO, in real pods on this machine:", ""]
    lines.append(f"     {'step':<72}{'first run':>10}{'later':>8}")
    lines += [f"  {n:>2} {step.title:<72}{step.cold:>10}{step.warm:>8}" for n, step in enumerate(STEPS, 1)]
    lines += [
        "",
        "Measured on two cores: 11 minutes the first time, 2 afterwards; a busy machine takes up to twice that.",
        "`moerl cluster down` ends what runs; with --purge it deletes the cluster's data too.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(text() + "\n")
