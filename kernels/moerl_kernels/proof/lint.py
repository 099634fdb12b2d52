"""Environment variables that do nothing, or the opposite of what their name promises.

Many published manifests carry names that no program reads. They look like a setting, so whoever reads them believes
that a transport is chosen. Sources: aws-ofi-nccl's parameter file and doc/efa-env-var.md, NCCL's gin.cc, DeepEP's
and its AWS fork's sources (awsome-distributed-ai PR #1240 has the review that found most of them).
"""

from __future__ import annotations

from collections.abc import Mapping

INERT = {
    "OFI_NCCL_GIN_GDAKI": "aws-ofi-nccl has no such parameter; NCCL_GIN_TYPE=5 asks for EFA-GDA",
    "OFI_NCCL_GIN_TYPE": "aws-ofi-nccl has no such parameter; NCCL itself reads NCCL_GIN_TYPE",
    "OFI_NCCL_GIN_STRONG_SIGNAL": "aws-ofi-nccl has no such parameter; EFA has no strong signals",
    "OFI_NCCL_GIN_MAX_REQUESTS": "aws-ofi-nccl has no such parameter",
    "OFI_NCCL_GDRCOPY_FORCED_PCIE_COPY": "aws-ofi-nccl has no such parameter",
    "DEEP_EP_BACKEND": "neither DeepEP nor its AWS fork reads it",
    "EP_EFA_MAX_QPS": "read only by DeepEP pull request 612; the AWS fork bounds queue pairs itself",
    "EP_EFA_RDMA_GBS": "read only by DeepEP pull request 612; the AWS fork reads the rate from sysfs",
    "FI_EFA_FORK_SAFE": "not needed since libfabric 1.13 on kernels with copy-on-fork",
}
HARMFUL = {
    "RDMAV_FORK_SAFE": "aws-ofi-nccl asks not to set it: every registration then marks its pages",
    "FI_EFA_USE_DEVICE_RDMA": "aws-ofi-nccl asks not to set it: libfabric 1.18 and later choose by the device",
}


def lint(environment: Mapping[str, str], *, requested: str = "Auto", pods: int = 1) -> tuple[str, ...]:
    """One sentence for each variable that misleads, sorted by name; `requested` and `pods` as in verdict.compare."""
    out = [f"{name} has no effect: {why}" for name, why in INERT.items() if name in environment]
    out += [f"{name} is set: {why}" for name, why in HARMFUL.items() if name in environment]
    gin = environment.get("NCCL_GIN_TYPE")
    if gin == "3":
        out.append("NCCL_GIN_TYPE=3 is GDAKI over InfiniBand since NCCL 2.31; EFA-GDA is 5")
    if gin == "5" and environment.get("NCCL_SYM_GIN_KERNELS_ENABLE") != "0":
        out.append("NCCL_GIN_TYPE=5 needs NCCL_SYM_GIN_KERNELS_ENABLE=0: NCCL's own GIN kernels want strong signals")
    wanted = {"EFAGDA": "5", "EFAProxy": "2"}.get(requested)
    if wanted and gin is None:
        out.append(f"NCCL_GIN_TYPE is not set: {requested} needs {wanted}, and an unset type may silently be another")
    elif wanted and gin != wanted:
        out.append(f"NCCL_GIN_TYPE={gin} contradicts the requested {requested}, which is {wanted}")
    if gin in ("2", "5") and environment.get("OFI_NCCL_PROTOCOL", "RDMA").upper() != "RDMA":
        out.append("OFI_NCCL_PROTOCOL must be RDMA: aws-ofi-nccl initialises GIN with no other")
    if gin in ("2", "5") and environment.get("NCCL_GIN_ENABLE") == "0":
        out.append(f"NCCL_GIN_ENABLE=0 switches off what NCCL_GIN_TYPE={gin} asks for")
    if environment.get("EP_DISABLE_GIN") == "1" and pods > 1:
        out.append("EP_DISABLE_GIN=1 leaves DeepEP no path between nodes; it is for one NVLink domain")
    if environment.get("EP_HYBRID_KERNEL") == "ordered" and wanted:
        out.append("EP_HYBRID_KERNEL=ordered wants ordered signals, which EFA does not give")
    return tuple(sorted(out))
