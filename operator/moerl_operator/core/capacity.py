"""Why a node group does not get its instances: capacity, a quota, or something that only a person can mend.

Auto Scaling says it in the status message of a failed activity, EKS (later) as a health issue.
"""

from __future__ import annotations

from typing import Literal

from moerl_operator.core.world import NodeGroupObservation

Trouble = Literal["Capacity", "Quota", "Terminal", "Other"]

# Sub-strings of EC2's codes and messages, as they appear inside activity messages.
_CAPACITY = (
    "InsufficientInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientHostCapacity",
    "UnfulfillableCapacity",
    "InsufficientReservedInstanceCapacity",
    "ReservationCapacityExceeded",
    "SpotMaxPriceTooLow",
    "no Spot capacity",
    "not have sufficient",
    "not supported in your requested Availability Zone",  # there is none there, ever: another zone is the remedy too
)
_QUOTA = (
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "InstanceLimitExceeded",
    "vCPU limit",
    "MaxSpotFleetRequestCountExceeded",
    "ResourceLimitExceeded",
)
# EKS health issues after which the same wish fails again until somebody changes something.
_TERMINAL = (
    "AccessDenied",
    "AmiIdNotFound",
    "Ec2InstanceTypeDoesNotExist",
    "Ec2LaunchTemplateInvalidConfiguration",
    "Ec2LaunchTemplateNotFound",
    "Ec2LaunchTemplateVersionMismatch",
    "Ec2SecurityGroupNotFound",
    "Ec2SubnetNotFound",
    "Ec2SubnetInvalidConfiguration",
    "IamInstanceProfileNotFound",
    "IamNodeRoleNotFound",
    "KubernetesLabelInvalid",
    "InsufficientFreeAddresses",
)


def trouble(group: NodeGroupObservation) -> tuple[Trouble, str] | None:
    """What keeps the group from its size, worst first, and AWS's own words for it."""
    said = [("", message) for message in group.failures] + list(group.issues)
    kinds: list[tuple[Trouble, str]] = [(_kind(code, text), f"{code}: {text}" if code else text) for code, text in said]
    for wanted in ("Terminal", "Quota", "Capacity", "Other"):
        for kind, text in kinds:
            if kind == wanted:
                return kind, text
    return None


def refused(group: NodeGroupObservation) -> bool:
    """Whether Auto Scaling has said, since the size was set, that there is no capacity.

    EKS's health issues do not count: they stay after the trouble is over.
    """
    return any(_kind("", text) == "Capacity" for text in group.failures)


def _kind(code: str, text: str) -> Trouble:
    if any(word in text for word in _QUOTA):
        return "Quota"
    if any(word in text for word in _CAPACITY):
        return "Capacity"
    return "Terminal" if code in _TERMINAL else "Other"
