"""Plays the nodes that this machine does not have: kwok with stages of our own.

kwok's own stages complete every Job pod within seconds; ours (stages.yaml) keep pods running until told.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from moerl_local.cluster.build import KUBERNETES_VERSION
from moerl_local.cluster.controlplane import Files
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.cluster.processes import Processes
from moerl_local.cluster.settings import Settings

LABEL = "moerl.dev/fake-node"
ANNOTATION = {"kwok.x-k8s.io/node": "fake"}
DO = "fake.moerl.dev/do"
ON_TERM = "fake.moerl.dev/on-term"
LOST_ANNOTATION = "fake.moerl.dev/node"
LOST_LABEL = "fake.moerl.dev/lost"

_STAGES = Path(__file__).with_name("stages.yaml")

# The status of a pod all of whose containers have ended: $code for containers, $sidecar for native sidecars.
_TERMINATED = """
phase: {{ if eq $code 0 }}Succeeded{{ else }}Failed{{ end }}
{{ $now := Now }}{{ $root := . }}
conditions:
{{ range list "Ready" "ContainersReady" }}
- {type: {{ . }}, status: "False", reason: {{ if eq $code 0 }}PodCompleted{{ else }}PodFailed{{ end }}, \
lastProbeTime: null, lastTransitionTime: {{ $now | Quote }}}
{{ end }}
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
{{ $exit := 0 }}{{ if eq (or .restartPolicy "") "Always" }}{{ $exit = $sidecar }}{{ end }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: "", restartCount: 0, ready: false, started: false, \
state: {terminated: {exitCode: {{ $exit }}, reason: {{ if eq $exit 0 }}Completed{{ else }}Error{{ end }}, \
startedAt: {{ or $root.status.startTime $now | Quote }}, finishedAt: {{ $now | Quote }}}}}
{{ end }}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: "", restartCount: 0, ready: false, started: false, \
state: {terminated: {exitCode: {{ $code }}, reason: {{ if eq $code 0 }}Completed{{ else }}Error{{ end }}, \
startedAt: {{ or $root.status.startTime $now | Quote }}, finishedAt: {{ $now | Quote }}}}}
{{ end }}
"""


def config() -> str:
    """kwok's configuration file: options, then the stages."""
    indented = "\n".join(10 * " " + line for line in _TERMINATED.strip().replace("\\\n", "").splitlines()).lstrip()
    stages = _STAGES.read_text().replace("@TERMINATED@", indented).replace("@KUBERNETES_VERSION@", KUBERNETES_VERSION)
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "podPlayStageParallelism": 32,
            "nodePlayStageParallelism": 16,
            "nodeLeaseParallelism": 16,
            "podsOnNodeSyncParallelism": 8,
        },
    }
    return f"{yaml.safe_dump(options)}---\n{stages}"


def start(settings: Settings, processes: Processes, bin_dir: Path, kubectl: Kubectl) -> None:
    """Start kwok unless it runs."""
    if processes.get("kwok"):
        return
    files = Files(settings.folder)
    files.config("kwok.yaml").write_text(config())
    # Leases of an earlier kwok would keep this one from its nodes until they expire.
    kubectl.run("delete", "lease", "--namespace=kube-node-lease", "--all", "--wait=false")
    process = processes.start(
        "kwok",
        [
            bin_dir / "kwok",
            f"--kubeconfig={files.kubeconfig('kwok')}",
            f"--config={files.config('kwok.yaml')}",
            f"--manage-nodes-with-label-selector={LABEL}=true,!{LOST_LABEL}",
            f"--cidr={settings.network.fake_pod_cidr}",
            f"--node-ip={settings.network.fake_node_cidr.removesuffix('0.0/16')}0.1",
            "--node-lease-duration-seconds=40",
        ],
    )
    processes.require(process)


def node(
    name: str, *, labels: dict[str, str] | None = None, capacity: dict[str, str] | None = None
) -> dict[str, object]:
    """A fake Node object to apply, `capacity` both as its capacity and its allocatable."""
    status = {"capacity": capacity, "allocatable": capacity} if capacity else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                LABEL: "true",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                **(labels or {}),
            },
            "annotations": ANNOTATION,
        },
        "status": status,
    }


def lose(kubectl: Kubectl, name: str) -> None:
    """Make fake node `name` fall silent: NotReady, no heartbeats, its pods no longer move."""
    kubectl.run("annotate", "node", name, f"{LOST_ANNOTATION}=lost", "--overwrite")


def restore(kubectl: Kubectl, name: str) -> None:
    """Bring a lost fake node back."""
    found = json.loads(kubectl.run("get", "node", name, "-o", "json"))
    if LOST_ANNOTATION not in found["metadata"].get("annotations", {}):
        raise ClusterError(f"node {name} is not lost")
    kubectl.run("annotate", "node", name, f"{LOST_ANNOTATION}-")
    kubectl.run("label", "node", name, f"{LOST_LABEL}-")
