"""What AWS publishes about instance types (moto's copy), and the type `local` that stands for this machine's node."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from .world import LOCAL_TYPE, REGION, ZONES

EKS_IMAGE = "ami-0e0e0e0e0e0e0e0e0"  # stands for the EKS-optimised image of any type
KUBERNETES_VERSION = "1.34"
RELEASE_VERSION = "1.34.2-20251112"
_HUGE_PAGE_KIB = 2048
# The EFA driver pre-allocates 5128 huge pages of 2 MiB (EKS user guide, node-efa).
_EFA_HUGE_PAGES = 5128
# eni-max-pods.txt of amazon-eks-ami, where the ENI formula does not give it.
_MAX_PODS = {"p4d.24xlarge": 737, "p4de.24xlarge": 737, "p5.48xlarge": 100, "p5e.48xlarge": 100, "p5en.48xlarge": 100,
             "p6-b200.48xlarge": 198, "p6-b300.48xlarge": 198}  # fmt: skip


@cache
def _moto_types() -> tuple[dict[str, dict[str, Any]], dict[str, set[str]]]:
    # The files alone: importing moto's EC2 takes seconds, and the clock of a running emulator would stand still in it.
    found = importlib.util.find_spec("moto")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "ec2" / "resources"
    zones: dict[str, set[str]] = {}
    for entry in _read(folder / "instance_type_offerings" / "availability-zone" / f"{REGION}.json.gz"):
        zones.setdefault(entry["InstanceType"], set()).add(entry["Location"])
    return _read(folder / "instance_types.json.gz"), zones


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def instance_type(name: str) -> dict[str, Any] | None:
    """The InstanceTypeInfo of a type in the shape of DescribeInstanceTypes; None where there is no such type."""
    if name == LOCAL_TYPE:
        return _local_type()
    return _moto_types()[0].get(name)


def instance_type_names() -> list[str]:
    """Every type, sorted."""
    return sorted([*_moto_types()[0], LOCAL_TYPE])


def offered(name: str, zone: str) -> bool:
    """Whether a zone offers a type. A type that us-east-1 lacks altogether counts as offered everywhere: the region of
    the emulator is only a name."""
    zones = _moto_types()[1].get(name)
    return zone in (zones or ZONES)


@cache
def _local_type() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    cores = os.cpu_count() or 1
    return {
        "InstanceType": LOCAL_TYPE,
        "CurrentGeneration": True,
        "SupportedUsageClasses": ["on-demand", "spot"],
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": cores},
        "MemoryInfo": {"SizeInMiB": memory},
        "NetworkInfo": {
            "MaximumNetworkInterfaces": 4,
            "MaximumNetworkCards": 1,
            "Ipv4AddressesPerInterface": 30,
            "EfaSupported": False,
            "NetworkCards": [
                {"NetworkCardIndex": 0, "MaximumNetworkInterfaces": 4, "InterfaceTypes": ["interface"]},
            ],
        },
    }


def efa_interfaces(template_data: dict[str, Any]) -> int:
    """How many EFA devices an instance has: the EFA interfaces that its launch template asks for, none without."""
    interfaces = template_data.get("NetworkInterfaces", [])
    return sum(entry.get("InterfaceType") in ("efa", "efa-only") for entry in interfaces)


def gpus(facts: dict[str, Any]) -> int:
    """NVIDIA GPUs of a type."""
    devices = facts.get("GpuInfo", {}).get("Gpus", [])
    return sum(device["Count"] for device in devices if device["Manufacturer"] == "NVIDIA")


def node_resources(name: str, template_data: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """(capacity, allocatable) as the kubelet and the device plugins of such an instance would report them.

    Reserved are what the EKS images reserve: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of
    the rest; 255 MiB + 11 MiB a pod, 100 MiB eviction threshold, and the huge pages.
    """
    facts = instance_type(name)
    if facts is None:
        raise ValueError(f"there is no instance type {name}")
    cpus, memory_mib = facts["VCpuInfo"]["DefaultVCpus"], facts["MemoryInfo"]["SizeInMiB"]
    network = facts["NetworkInfo"]
    formula = network["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1) + 2
    pods = _MAX_PODS.get(name, formula)
    efa = efa_interfaces(template_data)
    huge_mib = _EFA_HUGE_PAGES * _HUGE_PAGE_KIB // 1024 if efa else 0
    millis = 60 + (10 if cpus > 1 else 0) + 5 * max(0, min(cpus, 4) - 2) + round(2.5 * max(0, cpus - 4))
    capacity = {
        "cpu": str(cpus),
        "memory": f"{memory_mib}Mi",
        "pods": str(pods),
        "ephemeral-storage": "500Gi",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": f"{huge_mib}Mi" if huge_mib else "0",
    }
    devices = {"nvidia.com/gpu": gpus(facts), "vpc.amazonaws.com/efa": efa}
    capacity |= {resource: str(count) for resource, count in devices.items() if count}
    allocatable = capacity | {
        "cpu": f"{cpus * 1000 - millis}m",
        "memory": f"{memory_mib - 255 - 11 * pods - 100 - huge_mib}Mi",
        "ephemeral-storage": "450Gi",
    }
    return capacity, allocatable
