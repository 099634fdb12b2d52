"""Facts of instance types: GPUs, EFA layout, memory, price. They do not change, so each is asked for once a day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from moerl_operator.aws.calls import Calls
from moerl_operator.aws.memo import Memo
from moerl_operator.aws.prices import usd_per_hour
from moerl_operator.control.ports import AwsFailure
from moerl_operator.core.world import InstanceFacts

KNOWN_SECONDS = 86_400.0
UNKNOWN_SECONDS = 600.0  # AWS adds types


class Catalog:
    """InstanceFacts by type, from ec2:DescribeInstanceTypes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._memo = Memo()

    async def facts(self, types: Iterable[str]) -> dict[str, InstanceFacts]:
        """Facts of those types that exist; one that is missing from the answer does not. Raises AwsFailure."""
        known: dict[str, InstanceFacts] = {}
        for name in sorted(set(types)):
            found = await self._memo.get(name, _life, partial(self._ask, name))
            if found is not None:
                known[name] = found
        return known

    async def _ask(self, name: str) -> InstanceFacts | None:
        try:
            answer = await self._calls("ec2", "describe_instance_types", InstanceTypes=[name])
        except AwsFailure as error:
            if error.error.code in ("InvalidInstanceType", "InvalidParameterValue"):
                return None
            raise
        described = answer.get("InstanceTypes") or []
        return facts_of(described[0]) if described else None


def _life(facts: InstanceFacts | None) -> float:
    return KNOWN_SECONDS if facts else UNKNOWN_SECONDS


def facts_of(described: Mapping[str, Any]) -> InstanceFacts:
    """One InstanceTypeInfo. EFA devices are counted by EfaInfo, not by cards: p6-b300 has 17 cards and 16 devices."""
    name = described["InstanceType"]
    network = described.get("NetworkInfo") or {}
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or []
    architectures = (described.get("ProcessorInfo") or {}).get("SupportedArchitectures") or ["x86_64"]
    efa = int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0)
    cards = network.get("NetworkCards") or []
    return InstanceFacts(
        name=name,
        gpus=sum(int(gpu.get("Count") or 0) for gpu in gpus),
        efa_interfaces=efa,
        network_cards=int(network.get("MaximumNetworkCards") or 1),
        efa_on_card_zero=_efa_on_card_zero(cards, efa),
        vcpus=int((described.get("VCpuInfo") or {}).get("DefaultVCpus") or 0),
        memory_mib=int((described.get("MemoryInfo") or {}).get("SizeInMiB") or 0),
        architecture=architectures[0],
        usd_per_hour=usd_per_hour(name),
    )


def _efa_on_card_zero(cards: list[Mapping[str, Any]], efa: int) -> bool:
    zero = next((card for card in cards if card.get("NetworkCardIndex", 0) == 0), None)
    if zero is not None and zero.get("InterfaceTypes"):
        return "efa-only" in zero["InterfaceTypes"]
    # Older answers do not name the types a card takes; with a card to spare it is the first that has no EFA device.
    return efa >= max(1, len(cards))
