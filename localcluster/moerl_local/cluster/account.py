"""Makes the operator's account: what it may do comes from the chart, so here it is only somebody, not an admin."""

from __future__ import annotations

from moerl_local.cluster import pki
from moerl_local.cluster.controlplane import Files
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.cluster.settings import Settings

NAMESPACE = "moerl-system"
NAME = "moerl-operator"
_TOKEN_LIFE_H = 24 * 365


def make(settings: Settings, kubectl: Kubectl, *, server: str) -> None:
    """Make namespace and ServiceAccount, and write a kubeconfig with a fresh token of a year."""
    # Helm takes over an object that carries these, and refuses one that does not.
    helm = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": NAME, "meta.helm.sh/release-namespace": NAMESPACE},
    }
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAMESPACE, **helm}},
    )
    token = kubectl.run("create", "token", NAME, f"--namespace={NAMESPACE}", f"--duration={_TOKEN_LIFE_H}h").strip()
    files = Files(settings.folder)
    pki.write_kubeconfig(
        files.kubeconfig("operator"),
        server=server,
        authority=files.pki / "ca.crt",
        user=NAME,
        token=token,
    )
