"""From evidence to one word. Pure: the same evidence gives the same verdict anywhere.

Counters decide; properties that a library reports about itself decide only what no counter can (whether the GPU or a
CPU thread starts an EFA write); log lines decide nothing, they corroborate or are contradicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moerl_kernels.proof.counters import EFA_SENT
from moerl_kernels.proof.evidence import GIN_EFA_GDA, GIN_NAMES, GIN_PROXY, Evidence
from moerl_kernels.proof.libraries import GDA_SYMBOL, duplicates

Transport = Literal["EFAGDA", "EFAProxy", "NVLink", "SHM", "TCP", "Local", "Unknown"]
Outcome = Literal["Match", "Mismatch", "NothingToProve", "Unknown"]
TRANSPORTS: tuple[Transport, ...] = ("EFAGDA", "EFAProxy", "NVLink", "SHM", "TCP", "Local", "Unknown")

# A path carried the exchange if its counter rose by this share of the payload. Headers only add; the missing share is
# for counters that are read a moment before the last packet is counted.
SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Verdict:
    """The transport that carried the exchange.

    reasons: what proves it, the decisive one first. contradictions: evidence that says otherwise and lost.
    """

    transport: Transport
    reasons: tuple[str, ...]
    contradictions: tuple[str, ...] = ()


def verdict(evidence: Evidence) -> Verdict:
    """Which transport the bytes took, Unknown if that is not proven."""
    exchange = evidence.exchange
    if not exchange.completed:
        return Verdict("Unknown", (f"the exchange did not complete: {exchange.error or 'no reason given'}",))
    if exchange.ranks == 1:
        return Verdict("Local", ("one rank: nothing was sent to anybody",))
    if exchange.devices == 1:
        return Verdict("Local", (f"{exchange.ranks} ranks share one device: their bytes stay in its memory",))
    if exchange.hosts > 1:
        if not exchange.sent_between_hosts:
            return Verdict("Unknown", ("ranks are on several nodes, but no byte between them was asked for",))
        return _between_hosts(evidence)
    if not exchange.sent_within_host:
        return Verdict("Unknown", ("no byte between ranks was asked for",))
    return _within_host(evidence)


def compare(requested: str, transport: str, *, pods: int) -> Outcome:
    """Whether an effective transport is what a job asked for; pods: size of the gang that was measured.

    A request constrains what goes between pods. Inside one pod only NVLink can be asked for, so a gang of one pod
    neither keeps nor breaks a request for a network; it proves nothing about it either.
    """
    if transport == "Unknown":
        return "Unknown"
    if requested in ("Auto", transport):
        return "Match"
    if transport == "Local" or (pods == 1 and requested != "NVLink"):
        return "NothingToProve"
    return "Mismatch"


def _between_hosts(evidence: Evidence) -> Verdict:
    wanted, traffic = evidence.exchange.sent_between_hosts, evidence.traffic
    sent = None if traffic.efa is None else max((traffic.efa.get(name, 0) for name in EFA_SENT), default=0)
    by_efa, by_network = _carried(sent, wanted), _carried(traffic.network, wanted)
    if by_efa and by_network:
        return _both(evidence, sent or 0)
    if by_efa:
        return _efa(evidence, f"EFA counters rose by {_bytes(sent or 0)}, {_bytes(wanted)} were sent between nodes")
    efa = _no_efa(sent)
    if by_network:
        words = f"network interfaces sent {_bytes(traffic.network or 0)}, {_bytes(wanted)} were sent between nodes"
        return Verdict("TCP", (words, efa), _claims(evidence, ("NET/Libfabric", "NET/OFI", "NET/AWS"), "EFA"))
    return Verdict("Unknown", (f"no counter rose by the {_bytes(wanted)} sent between nodes", efa, *_seen(evidence)))


def _both(evidence: Evidence, sent: int) -> Verdict:
    """EFA counters are the node's and interfaces the pod's: only the log tells which of the two was this exchange."""
    sockets, fabric = _logged(evidence, "NET/Socket"), evidence.log.provider.startswith("efa")
    seen = f"EFA counters rose by {_bytes(sent)} and interfaces sent {_bytes(evidence.traffic.network or 0)}"
    if sockets and not fabric:
        return Verdict("TCP", (f"{seen}; the log names sockets", "other programs of the node use EFA"))
    if fabric and not sockets:
        return _efa(evidence, f"{seen}; the log names provider {evidence.log.provider}")
    return Verdict("Unknown", (f"{seen}, and nothing tells which of them was this exchange",))


def _efa(evidence: Evidence, proof: str) -> Verdict:
    """EFA for certain; now whether the GPU or a CPU thread started the writes, which no counter tells."""
    symbols, log = evidence.plugin_symbols, evidence.log
    against: list[str] = []
    if evidence.exchange.kind != "deep_ep":
        why = "a host-initiated collective: the CPU proxy started its writes"
        if GIN_EFA_GDA in (evidence.nccl.gin_type, log.gin_type):
            against.append("GIN type 5 (EFA-GDA) is there, and nothing in this exchange used it")
        return Verdict("EFAProxy", (proof, why), tuple(against))
    kind, source = evidence.nccl.gin_type, "the communicator's properties say"
    if kind is not None and log.gin_type not in (None, kind):
        against.append(f"the log says GIN type {log.gin_type}")
    if kind is None and log.gin_type is not None:
        kind, source = log.gin_type, "the log says"
        if kind == GIN_EFA_GDA and not log.gda_context:
            return Verdict("Unknown", (proof, "the log names EFA-GDA, but no context of it was created"))
    if kind == GIN_EFA_GDA and symbols is not None and GDA_SYMBOL not in symbols:
        against.append(f"{source} GIN type 5")
        return Verdict("EFAProxy", (proof, f"{evidence.plugin} does not export {GDA_SYMBOL}"), tuple(against))
    if kind == GIN_EFA_GDA:
        if symbols is None and source == "the log says":
            return Verdict("Unknown", (proof, "only the log names EFA-GDA; the plugin's file could not be read"))
        return Verdict("EFAGDA", (proof, f"{source} GIN type 5 (EFA-GDA)"), tuple(against))
    if kind == GIN_PROXY:
        return Verdict("EFAProxy", (proof, f"{source} GIN type 2 (proxy)"), tuple(against))
    name = "no GIN type is known" if kind is None else f"{source} GIN type {kind} ({GIN_NAMES.get(kind, 'unknown')})"
    return Verdict("Unknown", (proof, f"{name}: neither EFA-GDA nor the proxy"), tuple(against))


def _within_host(evidence: Evidence) -> Verdict:
    wanted, traffic = evidence.exchange.sent_within_host, evidence.traffic
    sent = None if traffic.efa is None else max((traffic.efa.get(name, 0) for name in EFA_SENT), default=0)
    if _carried(traffic.nvlink, wanted):
        words = f"NVLink sent {_bytes(traffic.nvlink or 0)}, {_bytes(wanted)} were sent between the node's GPUs"
        return Verdict("NVLink", (words,), _claims(evidence, ("SHM", "NET/"), "another path"))
    for rose, where in ((traffic.network, "network interfaces"), (traffic.loopback, "the loopback")):
        if _carried(rose, wanted):
            words = f"{where} sent {_bytes(rose or 0)}, {_bytes(wanted)} were sent between ranks of this node"
            return Verdict("TCP", (words, _no_efa(sent)), _claims(evidence, ("P2P", "SHM"), "the node's own memory"))
    if _carried(sent, wanted):
        return _efa(evidence, f"EFA counters rose by {_bytes(sent or 0)} although all ranks are on one node")
    still = traffic.nvlink is not None and traffic.network is not None
    if still and _logged(evidence, "SHM") and not _logged(evidence, "P2P"):
        words = f"neither NVLink ({_bytes(traffic.nvlink or 0)}) nor a network carried {_bytes(wanted)}"
        return Verdict("SHM", (words, "the log names shared memory"))
    reasons = [f"no counter rose by the {_bytes(wanted)} sent between ranks"]
    if evidence.exchange.devices > 1 and traffic.nvlink is None:
        reasons.append("NVLink's counters cannot be read (nvidia-smi nvlink -gt d)")
    return Verdict("Unknown", (*reasons, *_seen(evidence)))


def _carried(rose: int | None, wanted: int) -> bool:
    return rose is not None and rose >= SHARE * wanted


def _no_efa(sent: int | None) -> str:
    return "there is no EFA adapter" if sent is None else f"EFA counters rose by {_bytes(sent)}"


def _logged(evidence: Evidence, prefix: str) -> bool:
    return any(path.startswith(prefix) for path in evidence.log.paths) or (
        prefix == "NET/Socket" and "Socket" in evidence.log.networks
    )


def _claims(evidence: Evidence, prefixes: Sequence[str], words: str) -> tuple[str, ...]:
    """Log lines that claim a path which the counters exclude."""
    claimed = [path for path in evidence.log.paths if path.startswith(tuple(prefixes))]
    out = [f"the log claims {words} ({', '.join(claimed)}), which the counters contradict"] if claimed else []
    if words == "EFA" and evidence.log.provider.startswith("efa"):
        out.append(f"the log names provider {evidence.log.provider}")
    return tuple(out)


def _seen(evidence: Evidence) -> tuple[str, ...]:
    """What may help a person who reads an Unknown."""
    out = [f"the log names {', '.join(evidence.log.paths)}"] if evidence.log.paths else []
    out += [f"two copies of {name} are mapped: {', '.join(p)}" for name, p in duplicates(evidence.libraries).items()]
    return (*out, *evidence.log.trouble[:2])


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count} B"
