"""User data of our instances: a MIME document, the only form that EKS merges with its own.

Pure text building. A boothook is used rather than a shell script because on the EKS AL2023 image the NVIDIA
module loads before cloud-init's final stage, where shell scripts run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 16 * 1024  # EC2's limit, before base64
_BOUNDARY = "==MOERL=="


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """What a node with an image of one's own must be told to join, since EKS then adds nothing."""

    name: str
    endpoint: str
    certificate_authority: str  # base64
    service_cidr: str


def render(
    *,
    hugepages_2mi: int = 0,
    extra: str | None = None,
    join: tuple[ClusterAddress, Mapping[str, str], tuple[tuple[str, str], ...]] | None = None,
) -> str | None:
    """The document, or None when there is nothing to say.

    `hugepages_2mi` is a number of pages of 2 MiB, reserved before the kubelet counts them; `join` is given for
    custom images only: cluster, labels and taints of the node. Raises ValueError beyond EC2's 16 KiB.
    """
    parts = []
    if hugepages_2mi:
        parts.append(_boothook(_HUGEPAGES.format(pages=hugepages_2mi)))
    if extra and extra.strip():
        parts.append(_boothook(extra if extra.startswith("#!") else f"#!/bin/bash\n{extra}"))
    if join is not None:
        parts.append(_part("application/node.eks.aws", json.dumps(_node_config(*join), indent=1)))
    if not parts:
        return None
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n'
    text = head + "".join(f"\n--{_BOUNDARY}\n{part}" for part in parts) + f"\n--{_BOUNDARY}--\n"
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(f"user data of {size} bytes: EC2 takes at most {MAX_BYTES}; shorten the class's userData")
    return text


_HUGEPAGES = """#!/bin/bash
echo "vm.nr_hugepages = {pages}" > /etc/sysctl.d/90-moerl-hugepages.conf
sysctl -q -p /etc/sysctl.d/90-moerl-hugepages.conf
"""


def _boothook(script: str) -> str:
    return _part("text/cloud-boothook", f"#cloud-boothook\n{script.rstrip()}\n")


def _part(media_type: str, content: str) -> str:
    return f'Content-Type: {media_type}; charset="utf-8"\n\n{content}'


def _node_config(
    cluster: ClusterAddress, labels: Mapping[str, str], taints: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    flags = [f"--node-labels={','.join(f'{key}={value}' for key, value in sorted(labels.items()))}"]
    if taints:
        flags.append(f"--register-with-taints={','.join(f'{key}={value}:NoSchedule' for key, value in taints)}")
    return {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {
            "cluster": {
                "name": cluster.name,
                "apiServerEndpoint": cluster.endpoint,
                "certificateAuthority": cluster.certificate_authority,
                "cidr": cluster.service_cidr,
            },
            "kubelet": {"flags": flags},
        },
    }
