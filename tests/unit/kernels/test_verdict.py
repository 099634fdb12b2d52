"""Evidence to verdict: counters decide, logs corroborate, and what is not proven is Unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moerl_kernels.proof import nccl_log
from moerl_kernels.proof.evidence import Evidence, Exchange, Library, LogFacts, NcclProperties, Traffic
from moerl_kernels.proof.verdict import compare, verdict

MIB = 1 << 20
GOLDEN = Path(__file__).parent / "golden"
BETWEEN = Exchange("nccl", ranks=16, hosts=2, devices=16, sent_between_hosts=64 * MIB, sent_within_host=56 * MIB)
WITHIN = Exchange("nccl", ranks=8, hosts=1, devices=8, sent_within_host=56 * MIB)
DEEP_EP = replace(BETWEEN, kind="deep_ep")
STILL = {"tx_bytes": 4096, "send_bytes": 0, "rdma_write_bytes": 0}
MOVED = {"tx_bytes": 4096, "send_bytes": 0, "rdma_write_bytes": 66 * MIB}
V14 = ("ncclGinPlugin_v11", "ncclGinPlugin_v13", "ncclGinPlugin_v14", "ncclNetPlugin_v11")


def log(name: str) -> LogFacts:
    return nccl_log.parse((GOLDEN / f"{name}.log").read_text().splitlines())


def judged(exchange: Exchange, traffic: Traffic, **more: Any) -> str:
    return verdict(Evidence(exchange, traffic, **more)).transport


EFA = Traffic(efa=MOVED, network=9000, nvlink=60 * MIB)


@pytest.mark.parametrize(
    ("exchange", "traffic", "more", "transport"),
    [
        pytest.param(DEEP_EP, EFA, {"nccl": NcclProperties(5), "plugin_symbols": V14}, "EFAGDA", id="gda"),
        pytest.param(DEEP_EP, EFA, {"log": log("efa_gda"), "plugin_symbols": V14}, "EFAGDA", id="gda by log and file"),
        pytest.param(DEEP_EP, EFA, {"nccl": NcclProperties(2)}, "EFAProxy", id="proxy"),
        pytest.param(DEEP_EP, EFA, {"log": log("efa_proxy")}, "EFAProxy", id="proxy over RMA, by log"),
        pytest.param(DEEP_EP, EFA, {}, "Unknown", id="EFA, but who starts the writes is not known"),
        pytest.param(DEEP_EP, EFA, {"nccl": NcclProperties(3)}, "Unknown", id="GDAKI is InfiniBand's"),
        pytest.param(DEEP_EP, EFA, {"log": log("efa_gda")}, "Unknown", id="gda by log alone"),
        pytest.param(BETWEEN, EFA, {"nccl": NcclProperties(5)}, "EFAProxy", id="a host collective uses no GIN"),
        pytest.param(BETWEEN, Traffic(efa=STILL, network=70 * MIB), {}, "TCP", id="sockets beside idle EFA"),
        pytest.param(BETWEEN, Traffic(network=70 * MIB), {}, "TCP", id="no EFA at all"),
        pytest.param(BETWEEN, Traffic(efa=MOVED, network=70 * MIB), {}, "Unknown", id="both moved"),
        pytest.param(
            BETWEEN, Traffic(MOVED, network=70 * MIB), {"log": log("socket_fallback")}, "TCP", id="a busy node"
        ),
        pytest.param(BETWEEN, Traffic(MOVED, network=70 * MIB), {"log": log("efa_proxy")}, "EFAProxy", id="a busy pod"),
        pytest.param(BETWEEN, Traffic(efa=STILL, network=9000), {}, "Unknown", id="nothing moved"),
        pytest.param(BETWEEN, Traffic(), {"log": log("efa_gda")}, "Unknown", id="a log alone proves nothing"),
        pytest.param(WITHIN, Traffic(nvlink=57 * MIB, network=0), {}, "NVLink", id="nvlink"),
        pytest.param(WITHIN, Traffic(nvlink=0, network=0), {"log": log("shm")}, "SHM", id="shared memory"),
        pytest.param(WITHIN, Traffic(nvlink=0, network=0), {}, "Unknown", id="PCIe or memory: not told"),
        pytest.param(WITHIN, Traffic(network=0), {"log": log("shm")}, "Unknown", id="NVLink's counters not readable"),
        pytest.param(WITHIN, Traffic(nvlink=0, loopback=60 * MIB), {}, "TCP", id="the loopback"),
        pytest.param(WITHIN, Traffic(nvlink=0, network=60 * MIB), {}, "TCP", id="pods of one node"),
        pytest.param(Exchange("none"), Traffic(), {}, "Local", id="one rank"),
        pytest.param(replace(WITHIN, devices=1), Traffic(nvlink=0), {}, "Local", id="ranks of one GPU"),
        pytest.param(replace(BETWEEN, sent_between_hosts=0), EFA, {}, "Unknown", id="nothing was asked for"),
        pytest.param(replace(WITHIN, completed=False, error="late"), EFA, {}, "Unknown", id="not completed"),
    ],
)
def test_table(exchange: Exchange, traffic: Traffic, more: dict[str, Any], transport: str) -> None:
    assert judged(exchange, traffic, **more) == transport


def test_counters_win_over_a_log_that_claims_efa() -> None:
    found = verdict(Evidence(BETWEEN, Traffic(efa=STILL, network=70 * MIB), log=log("efa_gda")))
    assert found.transport == "TCP"
    assert "EFA counters rose by 4096 B" in found.reasons
    assert any("NET/Libfabric/GDRDMA" in text and "contradict" in text for text in found.contradictions)
    assert "the log names provider efa-direct" in found.contradictions


def test_a_plugin_without_the_table_cannot_be_gda_whatever_is_said() -> None:
    for more in ({"nccl": NcclProperties(5)}, {"log": log("efa_gda")}):
        found = verdict(Evidence(DEEP_EP, EFA, plugin="/p.so", plugin_symbols=V14[:2], **more))  # type: ignore[arg-type]
        assert found.transport == "EFAProxy"
        assert "/p.so does not export ncclGinPlugin_v14" in found.reasons
        assert any("GIN type 5" in text for text in found.contradictions)


def test_properties_win_over_the_log() -> None:
    found = verdict(Evidence(DEEP_EP, EFA, nccl=NcclProperties(2), log=log("efa_gda")))
    assert (found.transport, found.contradictions) == ("EFAProxy", ("the log says GIN type 5",))


def test_less_than_was_sent_is_no_proof() -> None:
    assert judged(BETWEEN, Traffic(efa={"rdma_write_bytes": 30 * MIB}, network=0)) == "Unknown"


def test_an_unknown_tells_what_may_help() -> None:
    twice = (Library("libnccl", "/a/libnccl.so.2"), Library("libnccl", "/b/libnccl.so.2"))
    found = verdict(Evidence(BETWEEN, Traffic(network=0), libraries=twice, log=log("socket_fallback")))
    text = "\n".join(found.reasons)
    assert "two copies of libnccl are mapped: /a/libnccl.so.2, /b/libnccl.so.2" in text
    assert "No eligible providers" in text
    assert "NET/Socket" in text


@pytest.mark.parametrize(
    ("requested", "transport", "pods", "outcome"),
    [
        ("Auto", "TCP", 2, "Match"),
        ("TCP", "TCP", 2, "Match"),
        ("EFAGDA", "EFAGDA", 16, "Match"),
        ("EFAGDA", "TCP", 2, "Mismatch"),
        ("EFAGDA", "EFAProxy", 2, "Mismatch"),
        ("EFAProxy", "EFAGDA", 2, "Mismatch"),
        ("NVLink", "SHM", 1, "Mismatch"),
        ("NVLink", "NVLink", 1, "Match"),
        ("EFAGDA", "NVLink", 1, "NothingToProve"),
        ("TCP", "Local", 1, "NothingToProve"),
        ("NVLink", "Local", 1, "NothingToProve"),
        ("Auto", "Unknown", 2, "Unknown"),
        ("EFAGDA", "Unknown", 1, "Unknown"),
    ],
)
def test_request_and_verdict(requested: str, transport: str, pods: int, outcome: str) -> None:
    assert compare(requested, transport, pods=pods) == outcome
