"""Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler with the settings of a real cluster.

Authorisation, admission and priority stay as a managed cluster has them; what differs is durability (etcd
does not fsync) and the clients' rate limits, which would otherwise be what a benchmark on this machine measures.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from moerl_local.cluster import pki
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.processes import Process, Processes, last_line
from moerl_local.cluster.settings import Settings, is_free

# Client limits of the controllers, in requests per second; the defaults (20 and 50) are the bottleneck of
# every run with more than a few dozen pods (kubernetes-sigs/kwok#1533).
_QPS = 500
_BURST = 1000
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Files:
    """Where the control plane's files lie."""

    folder: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.folder / "pki"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object a line."""
        return self.folder / "logs" / "audit.log"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of `user`: admin, operator, or a component."""
        return self.folder / "kubeconfig" / f"{user}.kubeconfig"

    def config(self, name: str) -> Path:
        """A component's configuration file."""
        return self.folder / "config" / name


def prepare(settings: Settings) -> None:
    """Make certificates, kubeconfigs and configuration files; authorities are kept, the rest is made anew."""
    files = Files(settings.folder)
    for folder in (files.pki, files.audit_log.parent, files.config("x").parent, settings.folder / "etcd"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    etcd = pki.Authority(files.pki, "etcd-ca")
    etcd.issue("etcd", "etcd", addresses=["127.0.0.1", "localhost"])
    etcd.issue("apiserver-etcd", "kube-apiserver")
    cluster = pki.Authority(files.pki, "ca")
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    names += ["localhost", "127.0.0.1", settings.address, settings.network.api_service_address]
    cluster.issue("apiserver", "kube-apiserver", addresses=sorted(set(names)))
    cluster.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", groups=["system:masters"])
    pki.signing_key(files.pki)
    users = {
        "admin": ("moerl-admin", ["system:masters"]),
        "kube-controller-manager": ("system:kube-controller-manager", []),
        "kube-scheduler": ("system:kube-scheduler", []),
        # Stands for many kubelets, whose traffic a real server keeps apart from its users': exempt from priority
        # and fairness, so that fake heartbeats are never what a measured client waits for.
        "kwok": ("system:kwok", ["system:masters"]),
        "coredns": ("system:coredns", []),
        # Apart from the admin, so that the audit log tells them apart.
        "aws": ("moerl-aws-emulator", ["system:masters"]),
    }
    for file, (user, groups) in users.items():
        pair = cluster.issue(file, user, groups=groups)
        pki.write_kubeconfig(
            files.kubeconfig(file),
            server=server_url(settings),
            authority=cluster.certificate_path,
            user=user,
            pair=pair,
        )
    files.config("audit.yaml").write_text(yaml.safe_dump(_audit_policy()))
    files.config("scheduler.yaml").write_text(yaml.safe_dump(_scheduler_config(files)))


def server_url(settings: Settings) -> str:
    """The API server's URL."""
    return f"https://{settings.address}:{settings.port('apiserver', prefer=6443)}"


def start(settings: Settings, processes: Processes, bin_dir: Path) -> None:
    """Start whatever of the control plane does not run, and wait until it serves.

    Raises:
        ClusterError: a port is taken or a program ended; names its log.
    """
    etcd_port = settings.port("etcd", loopback=True)
    peer_port = settings.port("etcd-peer", loopback=True)
    server_url(settings)  # chooses the port
    for use, program in {"etcd": "etcd", "etcd-peer": "etcd", "apiserver": "kube-apiserver"}.items():
        host = settings.address if use == "apiserver" else "127.0.0.1"
        if not processes.get(program) and not is_free(host, settings.ports[use]):
            raise ClusterError(
                f"port {settings.ports[use]} of {host}, chosen earlier for {program}, is taken by another program; "
                f"end that program, or run `moerl cluster down --name {settings.name}` to have new ports chosen"
            )
    processes.start("etcd", _etcd(settings, bin_dir, etcd_port, peer_port))
    start_apiserver(settings, processes, _apiserver(settings, bin_dir, etcd_port))
    controllers = processes.start("kube-controller-manager", _controller_manager(settings, bin_dir))
    scheduler = processes.start("kube-scheduler", _scheduler(settings, bin_dir))
    for process in (controllers, scheduler):
        processes.require(process)


def start_apiserver(settings: Settings, processes: Processes, command: list[str | Path]) -> None:
    """Start the API server, and again when one of its start hooks gave up.

    A hook has 30 s, which a busy machine may not grant; the server then ends itself and counts on a kubelet.
    """
    for last in (False, False, True):
        apiserver = processes.start("kube-apiserver", command)
        try:
            await_ready(settings, apiserver)
            return
        except ClusterError:
            ended = processes.get("kube-apiserver") is None
            if last or not ended or "PostStartHook" not in last_line(Path(apiserver.log)):
                raise


def await_ready(settings: Settings, apiserver: Process, *, timeout_s: float = _START_S) -> None:
    """Wait until the API server says it is ready, its bootstrap roles made."""
    deadline = time.monotonic() + timeout_s
    processes = Processes(settings.folder)
    while not is_ready(settings):
        processes.require(apiserver)
        if time.monotonic() > deadline:
            said = last_line(Path(apiserver.log))
            raise ClusterError(f"kube-apiserver is not ready after {timeout_s:.0f} s: {said} (see {apiserver.log})")
        time.sleep(0.1)


def is_ready(settings: Settings) -> bool:
    """Whether /readyz of the API server answers 200."""
    files = Files(settings.folder)
    try:
        context = ssl.create_default_context(cafile=str(files.pki / "ca.crt"))
        context.load_cert_chain(files.pki / "admin.crt", files.pki / "admin.key")
        connection = http.client.HTTPSConnection(
            settings.address, settings.ports["apiserver"], timeout=3, context=context
        )
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException, KeyError):
        return False


def _etcd(settings: Settings, bin_dir: Path, port: int, peer_port: int) -> list[str | Path]:
    pki_dir = Files(settings.folder).pki
    peer = f"http://127.0.0.1:{peer_port}"
    return [
        bin_dir / "etcd",
        "--name=local",
        f"--data-dir={settings.folder / 'etcd'}",
        f"--listen-client-urls=https://127.0.0.1:{port}",
        f"--advertise-client-urls=https://127.0.0.1:{port}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        f"--cert-file={pki_dir / 'etcd.crt'}",
        f"--key-file={pki_dir / 'etcd.key'}",
        f"--trusted-ca-file={pki_dir / 'etcd-ca.crt'}",
        "--client-cert-auth",
        "--unsafe-no-fsync",  # a power cut loses a test cluster, an fsync per write loses minutes
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def _apiserver(settings: Settings, bin_dir: Path, etcd_port: int) -> list[str | Path]:
    files = Files(settings.folder)
    keys = files.pki
    return [
        bin_dir / "kube-apiserver",
        f"--bind-address={settings.address}",
        f"--advertise-address={settings.address}",
        f"--secure-port={settings.ports['apiserver']}",
        f"--etcd-servers=https://127.0.0.1:{etcd_port}",
        f"--etcd-cafile={keys / 'etcd-ca.crt'}",
        f"--etcd-certfile={keys / 'apiserver-etcd.crt'}",
        f"--etcd-keyfile={keys / 'apiserver-etcd.key'}",
        f"--tls-cert-file={keys / 'apiserver.crt'}",
        f"--tls-private-key-file={keys / 'apiserver.key'}",
        f"--client-ca-file={keys / 'ca.crt'}",
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={keys / 'apiserver-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",  # node names are not in any DNS
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={keys / 'sa.pub'}",
        f"--service-account-signing-key-file={keys / 'sa.key'}",
        f"--service-cluster-ip-range={settings.network.service_cidr}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",  # on top of the default set, which has PodSecurity
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",  # pod security decides, as on a managed cluster
        "--anonymous-auth=false",
        "--profiling=false",
        f"--audit-policy-file={files.config('audit.yaml')}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=512",
        "--audit-log-maxbackup=1",
    ]


def _controller_manager(settings: Settings, bin_dir: Path) -> list[str | Path]:
    files = Files(settings.folder)
    return [
        bin_dir / "kube-controller-manager",
        f"--kubeconfig={files.kubeconfig('kube-controller-manager')}",
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={files.pki / 'sa.key'}",
        f"--root-ca-file={files.pki / 'ca.crt'}",
        # Nodes get no podCIDR: the real one has its bridge, the fake ones kwok's pool.
        "--allocate-node-cidrs=false",
        f"--kube-api-qps={_QPS}",
        f"--kube-api-burst={_BURST}",
        "--concurrent-job-syncs=20",
        "--concurrent-statefulset-syncs=20",
        "--concurrent-deployment-syncs=20",
        "--concurrent-gc-syncs=20",
    ]


def _scheduler(settings: Settings, bin_dir: Path) -> list[str | Path]:
    return [
        bin_dir / "kube-scheduler",
        f"--config={Files(settings.folder).config('scheduler.yaml')}",
        "--secure-port=0",
    ]


def _scheduler_config(files: Files) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(files.kubeconfig("kube-scheduler")),
            "qps": _QPS,
            "burst": _BURST,
        },
    }


def _audit_policy() -> dict[str, object]:
    """Everything with user, verb and resource, but heartbeats, health checks and the components' own reads."""
    components = ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kwok"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": True,
        "rules": [
            {
                "level": "None",
                "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/openapi*", "/api*", "/version"],
            },
            {
                "level": "None",
                "namespaces": ["kube-node-lease"],
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "None", "users": components, "verbs": ["get", "list", "watch"]},
            {"level": "Metadata"},
        ],
    }


def read_audit(path: Path) -> list[dict[str, object]]:
    """The events of an audit log, oldest first; a line still being written is left out."""
    events: list[dict[str, object]] = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events
