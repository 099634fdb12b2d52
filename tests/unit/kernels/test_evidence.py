"""Counters, symbols, mapped libraries, logs, versions and variables, read from fake files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from moerl_kernels.proof import counters, elf, libraries, nccl_log, versions
from moerl_kernels.proof.evidence import Library
from moerl_kernels.proof.lint import INERT, lint
from support.elf_writer import library
from support.fake_node import FakeNode

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


# --- counters --------------------------------------------------------------------------------------------


def test_adapters_are_summed_and_others_left_out(node: FakeNode) -> None:
    node.adapter("rdmap0s6", {"tx_bytes": 5, "rdma_write_bytes": 100, "unknown": 7}, driver="efa")
    node.adapter("rdmap1s6", {"tx_bytes": 1, "rdma_write_bytes": 20})
    node.adapter("ibp2s0", {"tx_bytes": 1000})  # NVLink's own on P6
    node.adapter("rdmap9s0", {"tx_bytes": 1000}, driver="mlx5_core")
    assert counters.efa(node.root) == {"tx_bytes": 6, "rdma_write_bytes": 120}
    assert counters.efa_devices(node.root) == ["rdmap0s6", "rdmap1s6"]


def test_nothing_to_read_is_none_and_not_zero(node: FakeNode) -> None:
    assert counters.read(node.root) == counters.Counters(None, None, None)
    assert counters.rose(counters.Counters(), counters.Counters()) == counters.Traffic()


def test_what_rose(node: FakeNode) -> None:
    node.adapter("rdmap0s6", {"tx_bytes": 5})
    for name, sent in (("lo", 10), ("eth0", 100)):
        node.interface(name, sent)
    before = counters.read(node.root, nvlink_text="Link 0: Data Tx: 10 KiB\nLink 0: Data Rx: 4 KiB\n")
    node.adapter("rdmap0s6", {"tx_bytes": 905})
    for name, sent in (("lo", 15), ("eth0", 300), ("veth9", 5000)):
        node.interface(name, sent)
    after = counters.read(node.root, nvlink_text="Link 0: Data Tx: 12 KiB\nLink 1: Data Tx: 3 KiB\n")
    rose = counters.rose(before, after)
    assert (rose.efa, rose.network, rose.loopback, rose.nvlink) == ({"tx_bytes": 900}, 200, 5, 5 * 1024)


def test_a_counter_that_fell_is_not_read(node: FakeNode) -> None:
    before = counters.Counters(efa={"tx_bytes": 10}, nvlink=10)
    assert counters.rose(before, counters.Counters(efa={"tx_bytes": 3}, nvlink=3)) == counters.Traffic()


def test_a_counter_that_was_not_there_before_proves_nothing(node: FakeNode) -> None:
    node.adapter("rdmap0s6", {"tx_bytes": 5})
    before = counters.read(node.root)
    node.adapter("rdmap0s6", {"rdma_write_bytes": 10**12})
    assert counters.rose(before, counters.read(node.root)).efa == {"tx_bytes": 0}


def test_this_machines_interfaces_are_there() -> None:
    found = counters.interfaces()
    assert found is None or all(value >= 0 for value in found.values())


# --- symbols ---------------------------------------------------------------------------------------------


def test_exported_symbols_only(node: FakeNode) -> None:
    file = node.write("p.so", library(["ncclGinPlugin_v14", "main"], undefined=["malloc"], local=["hidden"]))
    assert elf.exported(file) == ("main", "ncclGinPlugin_v14")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not fit"),
        (b"#!/bin/sh\n" + b" " * 64, "is no ELF file"),
        (b"\x7fELF\x01\x01" + b"\0" * 64, "is not 64-bit"),
        (b"\x7fELF\x02\x02" + b"\0" * 64, "is not 64-bit"),
        (b"\x7fELF\x02\x01" + b"\0" * 64, "no section headers"),
        (library(["a"])[:-10], "does not fit"),
    ],
)
def test_files_that_are_no_library(node: FakeNode, content: bytes, words: str) -> None:
    file = node.write("p.so", content)
    with pytest.raises(elf.ElfError, match=words):
        elf.exported(file)
    assert libraries.plugin_symbols(node.root, "/p.so") is None


def test_a_damaged_file_gives_an_error_and_never_another_exception(node: FakeNode) -> None:
    whole, rng = library(["ncclGinPlugin_v14", "x"]), random.Random(7)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        node.write("p.so", bytes(damaged))
        libraries.plugin_symbols(node.root, "/p.so")


def test_the_plugin_and_its_tables(node: FakeNode) -> None:
    names = ["ncclNetPlugin_v11", "ncclGinPlugin_v13", "ncclGinPlugin_v14", "ncclRmaPlugin_v15", "ofi_helper"]
    node.write("opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", library(names))
    path = libraries.plugin(node.root, (), {"NCCL_NET_PLUGIN": "ofi"})
    assert path == "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    assert libraries.plugin(node.root, (), {}) == path
    assert libraries.plugin_symbols(node.root, path) == tuple(sorted(names[:4]))
    assert libraries.plugin(node.root, (Library("libnccl-net-ofi", "/mapped.so"),), {}) == "/mapped.so"
    assert libraries.plugin(node.root, (), {"NCCL_GIN_PLUGIN": "/x.so"}) == "/x.so"
    assert libraries.plugin_symbols(node.root, "/x.so") is None


def test_mapped_libraries(node: FakeNode) -> None:
    node.write(
        "proc/self/maps",
        "7f00-7f10 r-xp 00000000 08:01 99 /venv/nvidia/nccl/lib/libnccl.so.2\n"
        "7f10-7f20 r--p 00000000 08:01 99 /venv/nvidia/nccl/lib/libnccl.so.2\n"
        "7f20-7f30 r-xp 00000000 08:01 98 /opt/nccl/lib/libnccl.so.2.31.2 (deleted)\n"
        "7f30-7f40 r-xp 00000000 08:01 97 /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so\n"
        "7f40-7f50 r-xp 00000000 08:01 96 /usr/lib/libc.so.6\n"
        "7f50-7f60 rw-p 00000000 00:00 0 \n7f60-7f70 rw-p 00000000 00:00 0 [heap]\n",
    )
    found = libraries.mapped(node.root)
    assert [(x.name, x.path.rsplit("/", 1)[1]) for x in found] == [
        ("libnccl", "libnccl.so.2.31.2"),
        ("libnccl", "libnccl.so.2"),
        ("libnccl-net-ofi", "libnccl-net-ofi.so"),
    ]
    assert list(libraries.duplicates(found)) == ["libnccl"]
    assert libraries.mapped(node.root / "nowhere") == ()


# --- logs ------------------------------------------------------------------------------------------------


def parsed(name: str) -> nccl_log.LogFacts:
    return nccl_log.parse((GOLDEN / f"{name}.log").read_text().splitlines())


def test_log_of_efa_gda() -> None:
    found = parsed("efa_gda")
    assert (found.provider, found.nics, found.protocol) == ("efa-direct", 16, "RDMA")
    assert (found.gin_type, found.gda_context) == (5, True)
    assert (found.nccl_version, found.ofi_version, found.libfabric_version) == ("2.31.2+cuda13.1", "1.21.1", "2.6")
    assert found.paths == {"NET/Libfabric/GDRDMA": 2, "P2P": 1}
    assert (found.networks, found.trouble) == (("Libfabric",), ())


def test_log_of_the_proxy() -> None:
    found = parsed("efa_proxy")
    assert (found.provider, found.nics, found.gin_type, found.gda_context) == ("efa", 32, 2, False)


def test_log_of_a_silent_fallback() -> None:
    found = parsed("socket_fallback")
    assert (found.networks, found.paths) == (("Socket",), {"NET/Socket": 2})
    assert found.trouble[0] == "NET/OFI No eligible providers were found"
    assert len(found.trouble) == 2


def test_log_with_a_number() -> None:
    line = "h:1:1 [0] NCCL INFO GIN/Plugin: Assigned plugin Libfabric_GDAKI type 5 to comm"
    assert nccl_log.parse([line]).gin_type == 5


def test_lines_of_anything_else_are_passed_over() -> None:
    assert nccl_log.parse(["", "via NET", "NCCL", "Using the network", "\x00\xff"]) == nccl_log.LogFacts()


# --- versions and variables ------------------------------------------------------------------------------


def test_versions_of_the_reference_node(node: FakeNode) -> None:
    node.p5en()
    node.adapter("rdmap0s6", {"tx_bytes": 0})
    found = versions.read(node.root, parsed("efa_gda"))
    assert found["driver"] == "580.159.03"
    assert found["gpu"] == "8 x NVIDIA H200"
    assert (found["efa"], found["gdrcopy"], found["efa_installer"]) == ("3.3.0g", "2.5.2", "1.50.0")
    assert (found["cuda"], found["nccl"], found["aws_ofi_nccl"]) == ("13.1.2", "2.31.2", "1.21.1")
    assert versions.read(node.root)["libfabric"] == "2.6.0amzn1.0"
    assert versions.read(node.root)["aws_ofi_nccl"] == "1.21.1"


def test_fingerprint_is_stable_and_tells_a_change(node: FakeNode) -> None:
    node.p5en()
    env = {"NCCL_GIN_TYPE": "5", "FI_PROVIDER": "efa"}
    first = versions.fingerprint(versions.read(node.root), env)
    again = versions.fingerprint(dict(reversed(versions.read(node.root).items())), dict(reversed(env.items())))
    assert first == again
    assert len(first) == 16
    same = env | {"NCCL_DEBUG": "INFO", "PATH": "/x", "MOERL_BUFFER_PASSWORD": "secret", "RANK": "3"}
    assert versions.fingerprint(versions.read(node.root), same) == first
    assert versions.fingerprint(versions.read(node.root), env | {"NCCL_GIN_TYPE": "2"}) != first
    node.write("sys/module/efa/version", "3.1.0\n")
    assert versions.fingerprint(versions.read(node.root), env) != first


def test_fingerprint_of_known_words_is_the_same_on_every_machine() -> None:
    assert versions.fingerprint({"driver": "580", "efa": None}, {"NCCL_NET": "Socket"}) == "4d74cb9d3466f0ca"


def test_inert_names_are_told() -> None:
    assert all(any(line.startswith(f"{name} ") for line in lint({name: "1"})) for name in INERT)
    assert lint({"NCCL_DEBUG": "INFO", "PATH": "/bin"}) == ()


@pytest.mark.parametrize(
    ("environment", "requested", "words"),
    [
        ({}, "EFAGDA", "NCCL_GIN_TYPE is not set: EFAGDA needs 5"),
        ({"NCCL_GIN_TYPE": "2"}, "EFAGDA", "contradicts the requested EFAGDA"),
        ({"NCCL_GIN_TYPE": "3"}, "Auto", "EFA-GDA is 5"),
        ({"NCCL_GIN_TYPE": "5"}, "EFAGDA", "needs NCCL_SYM_GIN_KERNELS_ENABLE=0"),
        ({"NCCL_GIN_TYPE": "2", "OFI_NCCL_PROTOCOL": "SENDRECV"}, "EFAProxy", "must be RDMA"),
        ({"NCCL_GIN_TYPE": "2", "NCCL_GIN_ENABLE": "0"}, "EFAProxy", "switches off"),
        ({"EP_DISABLE_GIN": "1"}, "Auto", "no path between nodes"),
        ({"EP_HYBRID_KERNEL": "ordered", "NCCL_GIN_TYPE": "2"}, "EFAProxy", "ordered signals"),
        ({"RDMAV_FORK_SAFE": "1"}, "Auto", "RDMAV_FORK_SAFE is set"),
    ],
)
def test_contradictions_are_told(environment: dict[str, str], requested: str, words: str) -> None:
    assert any(words in line for line in lint(environment, requested=requested, pods=2))


def test_the_operators_own_variables_are_clean() -> None:
    from moerl_operator.core.world import InstanceFacts
    from moerl_operator.manifests import transport

    facts = InstanceFacts("p5en.48xlarge", gpus=8, efa_interfaces=16)
    for wish in ("EFAGDA", "EFAProxy", "NVLink", "TCP"):
        assert lint(transport.environment(wish, facts), requested=wish, pods=2) == ()


def test_a_gpu_whose_file_cannot_be_read_is_left_out(node: FakeNode) -> None:
    node.p5en()
    (node.root / "proc/driver/nvidia/gpus/0000:ff:00.0/information").mkdir(parents=True)
    assert versions.gpu(node.root) == "8 x NVIDIA H200"


def test_a_secret_is_in_no_report_whatever_its_prefix() -> None:
    given = {"EP_API_KEY": "hush", "FI_TOKEN": "hush", "MOERL_BUFFER_PASSWORD": "hush", "FI_PROVIDER": "efa"}
    assert versions.path_environment(given) == {"FI_PROVIDER": "efa"}
