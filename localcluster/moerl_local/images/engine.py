"""A container engine for one build: `DOCKER_HOST` if it is set, else a private one that leaves nothing behind.

The private dockerd and its containerd live in mount and process namespaces of their own: when their first process ends,
however it ends, the kernel ends the rest and takes the mounts away. They touch neither iptables nor bridges. Layers
stay in the cache folder, so a second build does only what changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moerl_local import paths
from moerl_local.images.base import locked
from moerl_local.images.errors import ImageError

START_SECONDS = 60
CGROUP = "moerl-images"
_SBIN = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Engine:
    """A running Docker Engine and the client that talks to it."""

    host: str

    def run(self, *words: str, quiet: bool = True) -> str:
        """Runs the docker client; its output, or to the terminal where not `quiet`.

        Raises ImageError with the engine's own words.
        """
        # BuildKit needs a plugin that Debian does not ship; the classic builder is in every engine.
        environment = {**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0", "PATH": _SBIN}
        done = subprocess.run(
            ["docker", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = [line for line in (done.stdout or "").splitlines() if line.strip()]
            raise ImageError(f"docker {words[0]} failed: {' | '.join(lines[-5:]) or done.returncode}")
        return done.stdout or ""


@contextmanager
def running() -> Iterator[Engine]:
    """An engine to build with. Raises ImageError where a prerequisite is missing."""
    if not shutil.which("docker", path=_SBIN):
        raise ImageError("docker is missing: apt-get install docker.io")
    if host := os.environ.get("DOCKER_HOST"):
        yield Engine(host)
        return
    if os.geteuid() != 0:
        raise ImageError("a private Docker Engine needs root: run with sudo, or set DOCKER_HOST to an engine of yours")
    for program, package in (("dockerd", "docker.io"), ("containerd", "containerd"), ("unshare", "util-linux")):
        if not shutil.which(program, path=_SBIN):
            raise ImageError(
                f"{program} is missing: apt-get install {package}, or set DOCKER_HOST to an engine of yours"
            )
    with locked(cache() / ".lock"):
        yield from _private()


def cache() -> Path:
    """Where the private engine keeps its layers; can be deleted at any time and only costs time."""
    return paths.cache_dir() / "engine"


def _private() -> Iterator[Engine]:
    paths.state_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir=paths.state_dir()))
    try:
        process = _start(folder)
        try:
            _await(folder, process)
            yield Engine(f"unix://{folder}/docker.sock")
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_cgroups()


def _start(folder: Path) -> subprocess.Popen[bytes]:
    config = folder / "containerd.toml"
    config.write_text(
        f'version = 2\nroot = "{cache()}/containerd"\nstate = "{folder}/run/containerd"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{folder}/containerd.sock"\n'
    )
    (folder / "daemon.json").write_text("{}")
    dockerd = [
        "dockerd", f"--config-file={folder}/daemon.json", f"--host=unix://{folder}/docker.sock",
        f"--containerd={folder}/containerd.sock", f"--data-root={cache()}/data", f"--exec-root={folder}/run/docker",
        f"--pidfile={folder}/docker.pid", f"--cgroup-parent=/{CGROUP}", "--storage-driver=overlay2",
        "--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false",
    ]  # fmt: skip
    script = f'containerd --config "{config}" & exec "$@"'
    command = [
        "unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc",
        "sh", "-c", script, "sh", *dockerd,
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PATH": _SBIN},
        )  # fmt: skip


def _await(folder: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    engine = Engine(f"unix://{folder}/docker.sock")
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "docker.sock").exists():
            with contextlib.suppress(ImageError):
                engine.run("info")
                return
        time.sleep(0.2)
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    raise ImageError(f"the private Docker Engine did not start: {' | '.join(lines[-3:])}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks for an orderly end first; the namespaces then take down whatever is left."""
    for ask in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            # unshare itself ignores SIGTERM while it waits, so its child (dockerd) is asked.
            for pid in _children(process.pid) if ask is signal.SIGTERM else [process.pid]:
                os.kill(pid, ask)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
            return


def _children(pid: int) -> Sequence[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid]


def _remove_cgroups() -> None:
    for top in [*Path("/sys/fs/cgroup").glob(f"*/{CGROUP}"), Path("/sys/fs/cgroup") / CGROUP]:
        if top.is_dir():
            for folder in sorted((p for p in [top, *top.rglob("*")] if p.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
