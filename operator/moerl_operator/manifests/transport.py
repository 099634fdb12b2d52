"""Which devices and NCCL variables a requested transport needs (aws-ofi-nccl's GIN guide, EFA environment notes).

The type of NCCL's GPU-initiated networking is always pinned: a pinned type that is not available
fails loudly, an unset one may silently be another.
"""

from __future__ import annotations

from moerl_operator.core.world import InstanceFacts

EFA_TRANSPORTS = ("EFAGDA", "EFAProxy")
# Instance families whose EFA devices can be driven by the GPU (aws-ofi-nccl doc/gin-getting-started.md).
EFA_GDA_FAMILIES = ("p5en.", "p6-b200.", "p6-b300.")

# Interfaces that carry no training traffic; NCCL once chose pod-id-link0, the address of EKS Pod Identity.
_SOCKET_INTERFACES = "^lo,docker,veth,pod-id-link"
_COMMON_EFA = {
    "FI_PROVIDER": "efa",
    "OFI_NCCL_PROTOCOL": "RDMA",  # GIN refuses to initialise with another one
    "NVIDIA_GDRCOPY": "enabled",  # both GIN types need /dev/gdrdrv
    "EP_HYBRID_KERNEL": "unordered",  # EFA gives no strong ordering of signals
    "NCCL_DEBUG": "INFO",  # the transport proof reads these lines
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
    "NCCL_SOCKET_IFNAME": _SOCKET_INTERFACES,
}
_ENVIRONMENT: dict[str, dict[str, str]] = {
    "EFAGDA": _COMMON_EFA | {"NCCL_GIN_TYPE": "5", "NCCL_SYM_GIN_KERNELS_ENABLE": "0"},
    "EFAProxy": _COMMON_EFA | {"NCCL_GIN_TYPE": "2"},
    "NVLink": {"NCCL_GIN_ENABLE": "0", "NCCL_SOCKET_IFNAME": _SOCKET_INTERFACES},
    "TCP": {"NCCL_GIN_ENABLE": "0", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": _SOCKET_INTERFACES},
}


def resolve(requested: str, facts: InstanceFacts, gang: int) -> str:
    """The transport that a request stands for on these nodes.

    Auto takes EFA by the CPU proxy for a gang of several GPU nodes that have it (GPU-initiated EFA needs a
    prepared host, so it is asked for by name), NVLink inside one GPU node, else TCP.
    """
    if requested != "Auto":
        return requested
    if facts.gpus and gang == 1:
        return "NVLink"
    return "EFAProxy" if facts.gpus and facts.efa_interfaces else "TCP"


def environment(transport: str, facts: InstanceFacts) -> dict[str, str]:
    """NCCL and libfabric variables; none where there is no GPU, since then NCCL is not used."""
    return dict(_ENVIRONMENT[transport]) if facts.gpus else {}


def uses_efa(transport: str) -> bool:
    """Whether the pods get EFA devices."""
    return transport in EFA_TRANSPORTS
