"""What is decided before anything starts: addresses, ports, certificates, stages, prerequisites."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from moerl_local.cluster import controlplane, kwok, network, pki, settings
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import Cluster
from moerl_local.cluster.settings import Settings


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOERL_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_addresses_of_clusters_never_overlap() -> None:
    cidrs = [
        IPv4Network(cidr)
        for index in range(10)
        for cidr in (network.Network(index).pod_cidr, network.Network(index).service_cidr)
    ]
    assert not any(a.overlaps(b) for i, a in enumerate(cidrs) for b in cidrs[:i])
    first = network.Network(0)
    assert (first.bridge, first.address) == ("moerl0", "10.244.0.1")
    inside = IPv4Network(first.pod_cidr)
    real, fake = IPv4Network(first.real_pod_cidr), IPv4Network(first.fake_pod_cidr)
    assert real.subnet_of(inside)
    assert fake.subnet_of(inside)
    assert not real.overlaps(fake)


def test_taken_and_routed_addresses_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "usable", lambda: True)
    monkeypatch.setattr(
        network, "_networks_in_use", lambda: [IPv4Network("10.245.3.0/24"), IPv4Network("10.98.0.0/16")]
    )
    assert network.choose([0]).index == 3
    monkeypatch.setattr(network, "_networks_in_use", lambda: [IPv4Network("10.0.0.0/8")])
    with pytest.raises(ClusterError, match="no free addresses"):
        network.choose([])


def test_port_is_chosen_once_and_kept(state: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        chosen = Settings("a", index=None).port("x", prefer=taken)
        assert chosen != taken
    again = settings.load("a")
    assert again is not None
    assert again.port("x", prefer=taken) == chosen


def test_broken_settings_are_no_settings(state: Path) -> None:
    Settings("a", index=None).save()
    (state / "a" / "settings.json").write_text("{")
    assert settings.load("a") is None


def test_certificates_carry_names_and_the_authority_is_kept(tmp_path: Path) -> None:
    first = pki.Authority(tmp_path, "ca")
    certificate, key = first.issue("x", "somebody", groups=["team"], addresses=["10.244.0.1", "localhost"])
    authority = first.certificate_path.read_bytes()
    assert pki.Authority(tmp_path, "ca").certificate_path.read_bytes() == authority
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    read.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    assert read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "somebody"
    assert read.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "team"
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.244.0.1"]
    assert key.stat().st_mode & 0o077 == 0


def test_kwok_configuration_is_complete() -> None:
    documents = list(yaml.safe_load_all(kwok.config()))
    assert documents[0]["kind"] == "KwokConfiguration"
    assert "@" not in kwok.config()
    stages = {each["metadata"]["name"]: each["spec"] for each in documents[1:]}
    assert {"node-ready", "node-lost", "pod-run", "pod-complete", "pod-fail", "pod-drain", "pod-remove"} <= set(stages)


def test_cluster_file_reads_back(state: Path) -> None:
    cluster = Cluster(
        name="a",
        server="https://10.244.0.1:6443",
        bridge_address="10.244.0.1",
        pod_cidr="10.244.0.0/16",
        service_cidr="10.96.0.0/16",
        bin_dir=Path("/bin"),
        admin_kubeconfig=Path("/a"),
        operator_kubeconfig=Path("/o"),
        containerd_socket=None,
        node_name=None,
        audit_log=Path("/l"),
        aws_endpoint=None,
        engine="local",
    )
    (state / "a").mkdir(parents=True)
    cluster.save()
    assert set(json.loads((state / "a" / "cluster.json").read_text())) == {
        "name", "server", "bridgeAddress", "podCIDR", "serviceCIDR", "binDir", "adminKubeconfig", "operatorKubeconfig",
        "containerdSocket", "nodeName", "auditLog", "awsEndpoint", "engine",
    }  # fmt: skip
    assert Cluster.load("a") == cluster
    with pytest.raises(ClusterError, match="there is no cluster 'b'; start one with `moerl cluster up --name b`"):
        Cluster.load("b")


def test_audit_line_being_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text('{"verb":"create"}\n{"verb":"upd')
    assert controlplane.read_audit(tmp_path / "audit.log") == [{"verb": "create"}]


def cli(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moerl_local.cluster", *words]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not network.usable(), reason="the real node is looked for as root on Linux only")
def test_missing_packages_are_named_before_anything_is_made(state: Path, tmp_path: Path) -> None:
    done = cli("up", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "run `apt-get install containerd iproute2 iptables" in done.stderr
    assert not state.exists()


def test_missing_go_is_said_before_anything_is_made(state: Path, tmp_path: Path) -> None:
    done = cli("up", "--no-node", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("moerl: Go is not installed; install Go")
    assert done.stderr.count("\n") == 1
    assert not state.exists()


def test_commands_without_a_cluster_say_so() -> None:
    for words in (["status"], ["kubeconfig"], ["logs"], ["restart", "kwok"]):
        done = cli(*words, "--name", "none")
        assert done.returncode == 1, words
        assert done.stderr.startswith("moerl: "), done.stderr
        assert done.stderr.count("\n") == 1
    assert cli("up", "--name", "No/Name").returncode == 2
