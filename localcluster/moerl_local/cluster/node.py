"""The real node: kubelet on a containerd of its own, pods on a bridge, names from CoreDNS.

Only this node's pods have processes and addresses that answer. Everything listens on the bridge's address.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import yaml

from moerl_local.cluster import cgroups, pki, runtime, sysctls
from moerl_local.cluster.controlplane import Files, server_url
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.kubectl import Kubectl
from moerl_local.cluster.network import Network
from moerl_local.cluster.processes import Processes, last_line
from moerl_local.cluster.settings import Settings, is_free

NAME = "local"
_START_S = 60.0
_KUBELET_PORT = 10250
_DNS_PORT = 53


def check_ports(settings: Settings, processes: Processes) -> None:
    """See that the node's fixed ports are free on the bridge's address.

    Raises:
        ClusterError: another program listens there, that is, on all addresses of the machine.
    """
    for program, port in {"coredns": _DNS_PORT, "kubelet": _KUBELET_PORT}.items():
        if not processes.get(program) and not is_free(settings.address, port):
            raise ClusterError(
                f"port {port}, which {program} needs on {settings.address}, is taken by a program that listens on all "
                f"addresses (`ss -lnp sport = {port}` names it); end it, or use `moerl cluster up --no-node`"
            )


def start(settings: Settings, processes: Processes, bin_dir: Path, admin: Kubectl) -> None:
    """Start whatever of the node does not run, and wait until it is Ready.

    Raises:
        ClusterError: a program ended or the node does not become ready; names its log.
    """
    network = settings.network
    cgroups.make(network.bridge)
    sysctls.save()
    containerd = runtime.start(settings.folder, network, processes)
    _write_files(settings)
    admin.apply(*_dns_rights())
    dns = processes.start("coredns", [bin_dir / "coredns", "-conf", Files(settings.folder).config("Corefile")])
    runtime.await_ready(settings.folder, network, processes, containerd)
    began = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    fresh = processes.get("kubelet") is None
    kubelet = processes.start("kubelet", _kubelet(settings, bin_dir))
    deadline = time.monotonic() + _START_S
    while not _is_ready(admin, since=began if fresh else None):
        for process in (containerd, dns, kubelet):
            processes.require(process)
        if time.monotonic() > deadline:
            said = last_line(Path(kubelet.log))
            raise ClusterError(f"the node is not ready after {_START_S:.0f} s: {said} (see {kubelet.log})")
        time.sleep(0.2)


def runs(processes: Processes) -> bool:
    """Whether kubelet runs."""
    return processes.get("kubelet") is not None


def stop(network: Network, processes: Processes) -> int:
    """End kubelet and every pod, then the runtime.

    Returns:
        How many processes there were.
    """
    ended = processes.stop("kubelet", grace_s=3.0)
    ended += cgroups.kill(network.bridge)
    # The shims follow their containers; what is left of them, and containerd, has nothing to save.
    return ended + processes.stop(runtime.PROCESS, grace_s=1.0) + processes.stop("coredns", grace_s=1.0)


def _write_files(settings: Settings) -> None:
    files = Files(settings.folder)
    authority = pki.Authority(files.pki, "ca")
    user = f"system:node:{NAME}"
    pair = authority.issue("kubelet", user, groups=["system:nodes"], addresses=[NAME, settings.address])
    pki.write_kubeconfig(
        files.kubeconfig("kubelet"),
        server=server_url(settings),
        authority=authority.certificate_path,
        user=user,
        pair=pair,
    )
    files.config("resolv.conf").write_text(f"nameserver {settings.address}\n")
    files.config("kubelet.yaml").write_text(yaml.safe_dump(_kubelet_config(settings)))
    files.config("Corefile").write_text(_corefile(settings, files))


def _kubelet(settings: Settings, bin_dir: Path) -> list[str | Path]:
    files = Files(settings.folder)
    return [
        bin_dir / "kubelet",
        f"--config={files.config('kubelet.yaml')}",
        f"--kubeconfig={files.kubeconfig('kubelet')}",
        f"--root-dir={settings.folder / 'kubelet'}",
        f"--hostname-override={NAME}",
        f"--node-ip={settings.address}",
    ]


def _kubelet_config(settings: Settings) -> dict[str, object]:
    files = Files(settings.folder)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.address,
        "port": _KUBELET_PORT,
        "healthzBindAddress": settings.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(files.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(files.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(files.pki / "kubelet.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.network.bridge}",
        "clusterDNS": [settings.address],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{runtime.socket(settings.network)}",
        "resolvConf": str(files.config("resolv.conf")),
        "podLogsDir": str(settings.folder / "pod-logs"),
        "volumePluginDir": str(settings.folder / "kubelet" / "volume-plugins"),
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        # The machine's disk is not ours to watch: images that were brought in by hand would be deleted.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 110,
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "containerLogMaxSize": "20Mi",
    }


def _corefile(settings: Settings, files: Files) -> str:
    """Names of the cluster; any other is refused at once, so that look-ups of short names do not wait."""
    return f"""cluster.local 10.in-addr.arpa {{
    bind {settings.address}
    errors
    health 127.0.0.1:{settings.port("dns-health", loopback=True)}
    kubernetes cluster.local 10.in-addr.arpa {{
        kubeconfig {files.kubeconfig("coredns")}
        ttl 2
    }}
}}
. {{
    bind {settings.address}
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def _dns_rights() -> list[dict[str, object]]:
    name = "system:coredns"
    group = "rbac.authorization.k8s.io"
    reads = ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": reads},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": reads},
    ]
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
        },
    ]


def _is_ready(admin: Kubectl, *, since: datetime.datetime | None) -> bool:
    """Whether the node is Ready and said so itself after `since`: a resumed cluster remembers it as Ready."""
    ready = '?(@.type=="Ready")'
    template = f"{{.status.conditions[{ready}].status}} {{.status.conditions[{ready}].lastHeartbeatTime}}"
    said = admin.run("get", "node", NAME, "--ignore-not-found", "-o", f"jsonpath={template}").split()
    return len(said) == 2 and said[0] == "True" and (since is None or datetime.datetime.fromisoformat(said[1]) >= since)
