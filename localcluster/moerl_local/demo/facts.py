"""What was running: versions and the machine, asked at the time and not assumed."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster

_PACKAGES = ("moerl", "kopf", "kubernetes", "boto3", "moto", "torch", "transformers", "redis", "s3torchconnector")


def versions(cluster: Cluster, image: str) -> dict[str, str]:
    """Of the cluster's programs and of the Python packages that took part."""
    found = {"base image": image}
    try:
        found["Kubernetes"] = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
        nodes = json.loads(cluster.kubectl("get", "node", str(cluster.node_name), "-o", "json"))["status"]["nodeInfo"]
        found |= {"kubelet": nodes["kubeletVersion"], "container runtime": nodes["containerRuntimeVersion"]}
    except (ClusterError, KeyError, ValueError) as error:
        found["Kubernetes"] = f"unknown ({error})"
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["Python"] = platform.python_version()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if commit.returncode == 0:
        found["commit"] = commit.stdout.strip()
    return found


def machine() -> dict[str, str]:
    """Cores, memory and kernel."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{pages / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
    }
