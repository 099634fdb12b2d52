"""Pods of the real node: processes, names, limits, and what they can and cannot reach."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster import images
from moerl_local.cluster.handle import Cluster
from moerl_local.cluster.network import Network
from moerl_local.images import archive
from support.fake_nodes import condition, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.node]

IMAGE = "moerl.dev/pause:local"
# The machine's own programs, mounted into an image that has none.
MOUNTS = {"/usr": "/usr", "/bin": "/usr/bin", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}


@dataclass(frozen=True)
class Pods:
    """A namespace on the real node."""

    cluster: Cluster
    namespace: str

    def run(self, name: str, script: str, **spec: Any) -> None:
        """Start a pod that runs a Python `script`."""
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["/usr/bin/python3", "-c", textwrap.dedent(script)],
            "volumeMounts": [{"name": path.strip("/"), "mountPath": path} for path in MOUNTS],
            "resources": spec.pop("resources", {}),
        }
        volumes = [{"name": path.strip("/"), "hostPath": {"path": source}} for path, source in MOUNTS.items()]
        self.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {
                    "restartPolicy": "Never",
                    "nodeName": self.cluster.node_name,
                    "containers": [container],
                    "volumes": volumes,
                    "terminationGracePeriodSeconds": 5,
                    **spec,
                },
            }
        )

    def create(self, obj: dict[str, Any]) -> None:
        self.cluster.kubectl("-n", self.namespace, "create", "-f", "-", stdin=json.dumps(obj))

    def get(self, *words: str) -> Any:
        return json.loads(self.cluster.kubectl("-n", self.namespace, "get", *words, "-o", "json"))

    def phase(self, name: str) -> str:
        return str(self.get("pod", name)["status"]["phase"])

    def outcome(self, name: str) -> tuple[int, str]:
        """Exit code and log of a pod, once it has ended."""
        eventually(lambda: self.phase(name) in {"Succeeded", "Failed"}, within_s=60)
        ended = self.get("pod", name)["status"]["containerStatuses"][0]["state"]["terminated"]
        return int(ended["exitCode"]), self.cluster.kubectl("-n", self.namespace, "logs", name)


@pytest.fixture
def pods(node_cluster: Cluster) -> Iterator[Pods]:
    made = Pods(node_cluster, f"node-{uuid.uuid4().hex[:6]}")
    node_cluster.kubectl("create", "namespace", made.namespace)
    words = ("-n", made.namespace, "get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
    eventually(lambda: node_cluster.kubectl(*words))
    yield made
    node_cluster.kubectl("delete", "namespace", made.namespace, "--wait=false")


def test_a_pod_finds_a_headless_service_by_name(pods: Pods) -> None:
    pods.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 8080}]},
        }
    )
    script = "import http.server as h; h.HTTPServer(('', 8080), h.SimpleHTTPRequestHandler).serve_forever()"
    pods.run("web", script, hostname="web-0", subdomain="web")
    eventually(lambda: pods.phase("web") == "Running", within_s=60)
    pods.run(
        "client",
        f"""
        import socket, time, urllib.request
        def look(name):
            for _ in range(100):
                try: return socket.gethostbyname(name)
                except OSError: time.sleep(0.1)
        assert look("web-0.web.{pods.namespace}.svc.cluster.local") == look("web")
        print(urllib.request.urlopen("http://web:8080", timeout=5).status)
        began = time.monotonic()
        try: socket.gethostbyname("nobody.example")
        except OSError: print("unknown" if time.monotonic() - began < 2 else "slow")
        """,
    )
    assert pods.outcome("client") == (0, "200\nunknown\n")


def test_in_cluster_configuration_reaches_the_api_server(pods: Pods) -> None:
    pods.run(
        "client",
        """
        import os, pathlib, ssl, urllib.error, urllib.request
        account = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        context = ssl.create_default_context(cafile=account / "ca.crt")
        headers = {"Authorization": "Bearer " + (account / "token").read_text()}
        def ask(path):
            request = urllib.request.Request(f"https://{host}:{port}{path}", headers=headers)
            return urllib.request.urlopen(request, context=context, timeout=5)
        print(host, port, ask("/version").status)
        try: ask("/api/v1/secrets")
        except urllib.error.HTTPError as error: print(error.code)
        """,
    )
    service = pods.cluster.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    assert pods.outcome("client") == (0, f"{service} 443 200\n403\n")


def test_nothing_beyond_the_machine_is_reached(pods: Pods) -> None:
    network = Network(int(pods.cluster.bridge_address.split(".")[1]) - int(Network(0).address.split(".")[1]))
    assert network.address == pods.cluster.bridge_address
    # What no pod, Service or fake node has ends in a route, what the machine has a route for in a rule that counts it.
    ranges = (network.service_cidr, network.pod_cidr, network.fake_node_cidr)
    routes = json.loads(subprocess.check_output(["ip", "-j", "route", "show", "type", "blackhole"]))
    assert {route["dst"] for route in routes if route["metric"] == network.metric} >= set(ranges)
    beyond = "198.51.100.1"  # RFC 5737: nobody's
    assert subprocess.run(["ip", "route", "get", beyond], check=False, capture_output=True).returncode == 0, "no route"
    unused = [str(ipaddress.ip_network(cidr)[200 * 256 + 1]) for cidr in ranges]
    script = f"""
    import socket
    for address in {[beyond, *unused]}:
        try: socket.create_connection((address, 443), timeout=2); print("reached", address)
        except OSError: pass
    """
    with forwarding(network):
        dropped = dropped_packets(network)
        pods.run("client", script)
        assert pods.outcome("client") == (0, "")
        assert dropped_packets(network) > dropped


@contextmanager
def forwarding(network: Network) -> Iterator[None]:
    """Let the kernel forward what comes from the bridge, as a machine with a container engine does anyway.

    Elsewhere it drops such packets before the cluster's rule sees them, and nothing of the rule would be tested.
    """
    setting = Path(f"/proc/sys/net/ipv4/conf/{network.bridge}/forwarding")
    before = setting.read_text()
    setting.write_text("1")
    try:
        yield
    finally:
        setting.write_text(before)


def dropped_packets(network: Network) -> int:
    """How many packets from the bridge to other networks the cluster's rule has dropped."""
    command = ["iptables", "-w", "-t", "filter", "-vS", network.chain]
    rules = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^-A {network.chain} -i {network.bridge} -c (\d+) \d+ -j DROP$", rules, re.MULTILINE)
    assert found, f"no rule drops what comes from {network.bridge}:\n{rules}"
    return int(found[1])


def test_memory_limit_and_exit_code(pods: Pods) -> None:
    pods.run("big", "x = b'1' * 200_000_000", resources={"limits": {"memory": "64Mi"}})
    pods.run("crash", "raise SystemExit(42)")
    assert pods.outcome("big")[0] == 137
    assert pods.get("pod", "big")["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
    assert pods.outcome("crash")[0] == 42


def test_missing_image_is_said(pods: Pods) -> None:
    spec = {"nodeName": pods.cluster.node_name, "containers": [{"name": "main", "image": "registry.invalid/none:1"}]}
    pods.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})

    def reason() -> str | None:
        statuses = pods.get("pod", "p")["status"].get("containerStatuses", [])
        return statuses[0]["state"].get("waiting", {}).get("reason") if statuses else None

    eventually(lambda: reason() in {"ErrImagePull", "ImagePullBackOff"}, within_s=60)


def test_exec_and_sigterm(pods: Pods) -> None:
    script = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("up", flush=True)
    time.sleep(600)
    """
    pods.run("p", script)
    eventually(lambda: "up" in pods.cluster.kubectl("-n", pods.namespace, "logs", "p", "--ignore-errors"), within_s=60)
    said = pods.cluster.kubectl("-n", pods.namespace, "exec", "p", "--", "/usr/bin/cat", "/etc/resolv.conf")
    assert f"nameserver {pods.cluster.bridge_address}" in said
    patch = '{"metadata":{"finalizers":["moerl.dev/look"]}}'
    pods.cluster.kubectl("-n", pods.namespace, "patch", "pod", "p", "--type=merge", "-p", patch)
    pods.cluster.kubectl("-n", pods.namespace, "delete", "pod", "p", "--wait=false")
    assert pods.outcome("p")[0] == 143
    patch = '{"metadata":{"finalizers":null}}'
    pods.cluster.kubectl("-n", pods.namespace, "patch", "pod", "p", "--type=merge", "-p", patch)


def test_pod_security_refuses(pods: Pods) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    pods.cluster.kubectl("label", "namespace", pods.namespace, label)
    with pytest.raises(Exception, match="violates PodSecurity"):
        pods.run("p", "print()")


def test_loaded_image_runs(pods: Pods, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "hello").write_text("hello from the image\n")
    tag = f"moerl.dev/test-{uuid.uuid4().hex[:6]}:1"
    archive.write(root, tmp_path / "image.tar", tag=tag, config=archive.Config())
    assert images.load(tmp_path / "image.tar", name=pods.cluster.name) == [tag]
    mounts = [{"name": path.strip("/"), "mountPath": path} for path in MOUNTS]
    volumes = [{"name": path.strip("/"), "hostPath": {"path": source}} for path, source in MOUNTS.items()]
    container = {"name": "main", "image": tag, "command": ["/usr/bin/cat", "/hello"], "volumeMounts": mounts}
    spec = {"restartPolicy": "Never", "nodeName": pods.cluster.node_name, "containers": [container], "volumes": volumes}
    pods.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    assert pods.outcome("p") == (0, "hello from the image\n")
    command = ["ctr", "-a", str(pods.cluster.containerd_socket), "-n", "k8s.io", "images", "rm", tag]
    subprocess.run(command, check=True, capture_output=True)


def test_node_describes_itself(node_cluster: Cluster) -> None:
    node = json.loads(node_cluster.kubectl("get", "node", str(node_cluster.node_name), "-o", "json"))
    assert condition(node, "Ready")["status"] == "True"
    addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
    assert addresses["InternalIP"] == node_cluster.bridge_address
    assert "kwok.x-k8s.io/node" not in node["metadata"].get("annotations", {})
