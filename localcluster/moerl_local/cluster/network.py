"""Gives a cluster addresses of its own and keeps every packet to them on this machine.

A bridge carries the real pods and the API server. Service addresses, fake pods and fake nodes exist only in
objects, so their ranges get blackhole routes: without them the default route would carry such packets off the
machine. Everything has a name or a metric made from the cluster's index, so that it can be removed exactly.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from moerl_local.cluster.errors import ClusterError

_MAX_CLUSTERS = 10
_METRIC = 4096


@dataclass(frozen=True, slots=True)
class Network:
    """The addresses of cluster number `index` of this machine."""

    index: int

    @property
    def bridge(self) -> str:
        """The bridge device."""
        return f"moerl{self.index}"

    @property
    def address(self) -> str:
        """The machine's address on the bridge: API server, DNS, kubelet and AWS emulator listen there."""
        return f"10.{244 + self.index}.0.1"

    @property
    def pod_cidr(self) -> str:
        """All pod addresses."""
        return f"10.{244 + self.index}.0.0/16"

    @property
    def real_pod_cidr(self) -> str:
        """Addresses of pods on the real node."""
        return f"10.{244 + self.index}.0.0/24"

    @property
    def fake_pod_cidr(self) -> str:
        """Addresses that fake pods show; kwok hands them out from one pool, so nodes need no podCIDR."""
        return f"10.{244 + self.index}.128.0/17"

    @property
    def service_cidr(self) -> str:
        """Addresses of Services; only the first one, of `kubernetes`, is reachable."""
        return f"10.{96 + self.index}.0.0/16"

    @property
    def api_service_address(self) -> str:
        """The cluster IP of the Service `kubernetes`."""
        return f"10.{96 + self.index}.0.1"

    @property
    def fake_node_cidr(self) -> str:
        """Addresses that fake nodes show (the emulated VPC)."""
        return "10.1.0.0/16"

    @property
    def metric(self) -> int:
        """The metric of this cluster's blackhole routes; any route that the machine really has goes first."""
        return _METRIC + self.index

    @property
    def chain(self) -> str:
        """The name of this cluster's iptables chains."""
        return f"MOERL-{self.index}"


def usable() -> bool:
    """Whether this process may make bridges, routes and iptables rules: root on Linux."""
    return sys.platform == "linux" and os.geteuid() == 0


def choose(taken: Iterable[int]) -> Network:
    """The first free set of addresses.

    Args:
        taken: indices of the other clusters that this machine knows of.

    Raises:
        ClusterError: none is free.
    """
    occupied = set(taken)
    in_use = _networks_in_use() if usable() else []
    for index in range(_MAX_CLUSTERS):
        network = Network(index)
        wanted = [ipaddress.IPv4Network(cidr) for cidr in (network.pod_cidr, network.service_cidr)]
        if index not in occupied and not any(used.overlaps(each) for used in in_use for each in wanted):
            return network
    raise ClusterError(
        "no free addresses: 10.244.0.0/16 to 10.253.0.0/16 and 10.96.0.0/16 to 10.105.0.0/16 are all routed on this "
        "machine; end a cluster with `moerl cluster down --name NAME`, or remove those routes"
    )


def make_links(network: Network) -> None:
    """Make bridge, addresses and routes; what exists already stays.

    Raises:
        ClusterError: the kernel refused one of them.
    """
    bridge = network.bridge
    if not _succeeds("ip", "link", "show", bridge):
        _run("ip", "link", "add", bridge, "type", "bridge")
    # A fixed hardware address: otherwise it changes with the first pod, under the others' ARP caches.
    _run("ip", "link", "set", bridge, "address", f"02:6d:6f:65:72:{network.index:02x}")
    _run("ip", "address", "replace", f"{network.address}/24", "dev", bridge)
    # The Service address is local so that programs on the host pass routing, too, before DNAT rewrites it.
    _run("ip", "address", "replace", f"{network.api_service_address}/32", "dev", bridge)
    _run("ip", "link", "set", bridge, "up")
    in_use = _networks_in_use()
    for cidr in (network.service_cidr, network.pod_cidr, network.fake_node_cidr):
        wide = ipaddress.IPv4Network(cidr)
        if not any(used.overlaps(wide) and not used.subnet_of(wide) for used in in_use):
            _run("ip", "route", "replace", "blackhole", cidr, "metric", str(network.metric))


def make_rules(network: Network, api_port: int) -> None:
    """Let pods reach the API server at its Service address, and nothing beyond this machine.

    Rules that are right already are not touched: pods may be using them.

    Raises:
        ClusterError: iptables failed.
    """
    wanted = _rules(network, api_port)
    if all(_succeeds("iptables", "-w", "-t", table, "-C", chain, *words) for table, chain, words in wanted):
        return
    _remove_rules(network)
    for table in ("nat", "filter"):
        _iptables(table, "-N", network.chain)
    for table, chain, words in wanted:
        # Ours go before what others have in the shared chains.
        _iptables(table, *(("-A", chain) if chain == network.chain else ("-I", chain, "1")), *words)


def remove(network: Network) -> None:
    """Remove whatever is there of bridge, routes and rules."""
    _remove_rules(network)
    for cidr in (network.service_cidr, network.pod_cidr, network.fake_node_cidr):
        _succeeds("ip", "route", "del", "blackhole", cidr, "metric", str(network.metric))
    _succeeds("ip", "link", "del", network.bridge)


def _rules(network: Network, api_port: int) -> list[tuple[str, str, list[str]]]:
    """Table, chain and words of every rule, in order."""
    chain, bridge = network.chain, network.bridge
    target = ["-j", "DNAT", "--to-destination", f"{network.address}:{api_port}"]
    # Pods speak to each other and to this machine. Nothing passes between the bridge and other networks.
    return [
        ("nat", chain, ["-d", network.api_service_address, "-p", "tcp", "--dport", "443", *target]),
        ("filter", chain, ["-i", bridge, "-o", bridge, "-j", "ACCEPT"]),
        ("filter", chain, ["-i", bridge, "-j", "DROP"]),
        ("filter", chain, ["-o", bridge, "-j", "DROP"]),
        *_hooks(network),
    ]


def _remove_rules(network: Network) -> None:
    for table, hook, words in _hooks(network):
        while _succeeds("iptables", "-w", "-t", table, "-D", hook, *words):
            pass
    for table in ("nat", "filter"):
        _succeeds("iptables", "-w", "-t", table, "-F", network.chain)
        _succeeds("iptables", "-w", "-t", table, "-X", network.chain)


def _hooks(network: Network) -> list[tuple[str, str, list[str]]]:
    jump = ["-j", network.chain]
    return [
        ("nat", "PREROUTING", jump),
        ("nat", "OUTPUT", jump),
        ("filter", "FORWARD", jump),
        ("filter", "INPUT", ["-i", network.bridge, "-j", "ACCEPT"]),
    ]


def _networks_in_use() -> list[ipaddress.IPv4Network]:
    """What this machine has routes or addresses for, its default route and our own blackholes left out."""
    found = []
    for route in json.loads(_run("ip", "-j", "-4", "route", "show", "table", "all") or "[]"):
        ours = route.get("type") == "blackhole" and _METRIC <= route.get("metric", 0) < _METRIC + _MAX_CLUSTERS
        if route["dst"] != "default" and not ours and route.get("type") not in {"broadcast", "local"}:
            found.append(ipaddress.IPv4Network(route["dst"], strict=False))
    return found


def _iptables(table: str, *words: str) -> None:
    _run("iptables", "-w", "-t", table, *words)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
