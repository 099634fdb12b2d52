"""Specs of node groups, and a provider that talks to the emulator over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.aws.calls import Calls
from moerl_operator.aws.provider import AwsProvider
from moerl_operator.core.world import NodeGroupSpec
from support.emulator import CLUSTER, Emulator, _shared_emulator, emulator  # noqa: F401

UID = "0a1b2c3d-0000-0000-0000-000000000000"
CLUSTER_ARN = f"arn:aws:eks:us-east-1:111122223333:cluster/{CLUSTER}"
INSTALLATION = "test-installation"

SPEC = NodeGroupSpec(
    name=names.node_group(UID, "trainer", 1),
    role="trainer",
    group_key="trainer",
    instance_types=("p5en.48xlarge",),
    capacity_type="OnDemand",
    subnet="subnet-0000000000000000a",
    zone="us-east-1a",
    maximum=16,
    node_role_arn="arn:aws:iam::111122223333:role/moerl-node",
    security_groups=("sg-00000000000000001",),
    labels={"role.moerl.dev/trainer": names.node_group(UID, "trainer", 1)},
    taints=((names.TAINT_DEDICATED, names.uid8(UID)),),
    tags={
        names.TAG_INSTALLATION: INSTALLATION,
        names.TAG_CLUSTER: CLUSTER_ARN,
        names.TAG_OWNER: f"job/{UID}",
        names.TAG_JOB: "ns/job",
    },
    ami_type="AL2023_x86_64_NVIDIA",
    efa_interfaces=16,
    network_cards=16,
)


@pytest.fixture
def spec() -> Callable[..., NodeGroupSpec]:
    """The p5en trainer group, with changes."""

    def make(**changes: Any) -> NodeGroupSpec:
        return replace(SPEC, **changes)

    return make


class Watched:
    """A provider and every call it made."""

    def __init__(self, url: str, *, installation: str = INSTALLATION) -> None:
        self.made: list[tuple[str, str, str]] = []
        self.calls = Calls(
            region="us-east-1",
            endpoint_url=url,
            observer=lambda service, operation, code, seconds: self.made.append((service, operation, code)),
        )
        self.provider = AwsProvider(self.calls, cluster_name=CLUSTER, installation_id=installation, rng=Random(0))


@pytest.fixture
def aws(emulator: Emulator) -> Iterator[Watched]:  # noqa: F811
    """A provider on an empty account."""
    watched = Watched(emulator.url)
    yield watched
    watched.provider.close()
