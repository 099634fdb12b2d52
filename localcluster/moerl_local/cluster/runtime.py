"""The real node's container runtime: a containerd of its own, which leaves any other on the machine alone."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from moerl_local.cluster import build, prerequisites
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.network import Network
from moerl_local.cluster.processes import Process, Processes, last_line
from moerl_local.images import archive
from moerl_local.images import load as loading
from moerl_local.images.errors import ImageError

PROCESS = "containerd"
PAUSE_IMAGE = "moerl.dev/pause:local"
_START_S = 30.0
_UNUSED = ("aufs", "btrfs", "devmapper", "zfs")


def run_dir(network: Network) -> Path:
    """Sockets and run-time state; short, because a socket's path may have 107 characters."""
    return Path("/run") / network.bridge


def socket(network: Network) -> Path:
    """containerd's socket."""
    return run_dir(network) / "containerd.sock"


def start(folder: Path, network: Network, processes: Processes) -> Process:
    """Start containerd unless it runs; does not wait (see `await_ready`)."""
    cni = folder / "cni"
    root = folder / "containerd"
    for path in (cni, root, run_dir(network)):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    (cni / "10-moerl.conflist").write_text(json.dumps(_cni(network, cni), indent=1))
    config = folder / "config" / "containerd.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_config(network, root, cni))
    return processes.start(PROCESS, [PROCESS, "--config", config])


def await_ready(folder: Path, network: Network, processes: Processes, process: Process) -> None:
    """Wait until containerd answers, and give it the pause image."""
    image = _pause_archive(folder)
    deadline = time.monotonic() + _START_S
    while True:
        try:
            loading.load(image, socket(network))
            return
        except ImageError as error:
            processes.require(process)
            if time.monotonic() > deadline:
                said = last_line(Path(process.log))
                raise ClusterError(f"containerd does not answer: {error}; {said} (see {process.log})") from error
            time.sleep(0.2)


def _pause_archive(folder: Path) -> Path:
    target = folder / "pause.tar"
    with tempfile.TemporaryDirectory() as root:
        binary = Path(root) / "pause"
        binary.write_bytes(build.program_path("pause").read_bytes())
        binary.chmod(0o755)
        archive.write(Path(root), target, tag=PAUSE_IMAGE, config=archive.Config(command=["/pause"]))
    return target


def _config(network: Network, root: Path, cni: Path) -> str:
    unused = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in _UNUSED)
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{root}"
state = "{run_dir(network)}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", {unused}]

[grpc]
address = "{socket(network)}"

[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
# Without CAP_SYS_RESOURCE a score cannot be lowered, and pods would not start.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[{cri}.containerd]
snapshotter = "overlayfs"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
Root = "{run_dir(network)}/runc"

[{cri}.cni]
bin_dir = "{prerequisites.cni_bin_dir()}"
conf_dir = "{cni}"
"""


def _cni(network: Network, state: Path) -> dict[str, object]:
    """The bridge has its address already and the machine forwards nothing: no gateway or masquerade is asked for."""
    ipam = {
        "type": "host-local",
        "dataDir": str(state / "leases"),
        "ranges": [[{"subnet": network.real_pod_cidr, "gateway": network.address}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": network.bridge, "isGateway": False, "ipMasq": False, "hairpinMode": True}
    return {"cniVersion": "0.4.0", "name": network.bridge, "plugins": [{**bridge, "ipam": ipam}]}
