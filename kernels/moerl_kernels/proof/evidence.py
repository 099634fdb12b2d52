"""What was seen around one exchange. Plain data, so that a verdict can be tested without any device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# NCCL's ncclGinType_t (nccl_device/core.h; EFA_GDA since 2.31): how device-initiated traffic leaves the GPU.
GIN_NONE, GIN_PROXY, GIN_GDAKI, GIN_GPI, GIN_EFA_GDA = 0, 2, 3, 4, 5
GIN_NAMES = {
    GIN_NONE: "none",
    GIN_PROXY: "proxy",
    GIN_GDAKI: "GDAKI (InfiniBand)",
    GIN_GPI: "GPI",
    GIN_EFA_GDA: "EFA-GDA",
}

ExchangeKind = Literal["none", "sockets", "gloo", "nccl", "deep_ep"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The traffic whose path is to be proven.

    kind: what moved the bytes: plain sockets; a collective of gloo or NCCL; dispatch and combine of DeepEP, the only
        one here that NCCL's device-initiated networking (GIN) carries.
    ranks, hosts, devices: how many processes, distinct nodes and distinct GPUs took part (devices 0: none has one).
    sent_between_hosts, sent_within_host: payload bytes that this node had to send to ranks of other nodes, and that
        ranks of this node sent to each other's devices.
    completed: every byte arrived and was checked; `error` says what happened if not.
    """

    kind: ExchangeKind
    ranks: int = 1
    hosts: int = 1
    devices: int = 0
    sent_between_hosts: int = 0
    sent_within_host: int = 0
    completed: bool = True
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that counters rose by during the exchange. None: there is no such counter, or it cannot be read.

    efa: by counter name, summed over this node's adapters. Cumulative over all processes of the node.
    nvlink: transmitted payload, summed over this pod's GPUs and their links.
    network, loopback: transmitted by this network namespace's interfaces; `loopback` is `lo` alone.
    """

    efa: Mapping[str, int] | None = None
    nvlink: int | None = None
    network: int | None = None
    loopback: int | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """A mapped communication library: its short name (libnccl, libfabric, ...) and the file it came from."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What NCCL and its plugins said (NCCL_DEBUG=INFO). Corroboration only: a log line is a claim.

    paths: channels by the words after `via`, for instance `NET/Libfabric/GDRDMA`, `P2P`, `SHM`, `NET/Socket`.
    gin_type: of the plugin assigned to the communicator; gda_context: its GPU-initiated context was created.
    trouble: lines that are known signs of a fallback.
    """

    nccl_version: str = ""
    networks: tuple[str, ...] = ()
    provider: str = ""
    nics: int | None = None
    protocol: str = ""
    ofi_version: str = ""
    libfabric_version: str = ""
    gin_type: int | None = None
    gda_context: bool = False
    paths: Mapping[str, int] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NcclProperties:
    """ncclCommQueryProperties of the communicator (NCCL >= 2.29); None: not asked, or not answered."""

    gin_type: int | None = None
    device_api: bool | None = None
    multicast: bool | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a verdict may be drawn from. `plugin_symbols`: what the network plugin's ELF file exports."""

    exchange: Exchange
    traffic: Traffic = field(default_factory=Traffic)
    libraries: tuple[Library, ...] = ()
    plugin: str = ""
    plugin_symbols: tuple[str, ...] | None = None
    nccl: NcclProperties = field(default_factory=NcclProperties)
    log: LogFacts = field(default_factory=LogFacts)
