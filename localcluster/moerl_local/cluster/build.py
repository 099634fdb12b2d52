"""Builds the cluster's programs from the Go modules that pin them.

No image registry and no download site is assumed, only a Go module proxy. Programs go into a folder
named by a hash of everything they are built from, so that a folder that holds a name holds the right
program, and a change of a pin never mixes old and new.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.progress import Progress
from moerl_local.paths import cache_dir

GO_DIR = Path(__file__).resolve().parents[2] / "go"
KUBERNETES_VERSION = "v1.34.4"

_STRIP = "-s -w"
_STAMP = " ".join(
    f"-X k8s.io/component-base/version.{key}={value}"
    for key, value in {
        "gitVersion": KUBERNETES_VERSION,
        "gitMajor": "1",
        "gitMinor": "34",
        "gitTreeState": "clean",
    }.items()
)
_FLAGS = ("-trimpath", "-mod=readonly")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Program:
    """One executable: `package` of the Go module in folder `module`, stamped with Kubernetes' version or not."""

    name: str
    module: str
    package: str
    stamped: bool = False

    @property
    def ldflags(self) -> str:
        """The linker's flags; unstamped Kubernetes programs would say v0.0.0 and fail feature checks."""
        return f"{_STRIP} {_STAMP}" if self.stamped else _STRIP


# In the order they are built: whatever is needed first and takes longest comes first.
_ALL = (
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", stamped=True),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", stamped=True),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", stamped=True),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", stamped=True),
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", stamped=True),
    Program("coredns", "kubernetes", "./coredns", stamped=True),
    Program("helm", "kubernetes", "helm.sh/helm/v3/cmd/helm", stamped=True),
    Program("pause", "pause", "."),
    Program("jobset", "jobset", "sigs.k8s.io/jobset"),
)
PROGRAMS = {program.name: program for program in _ALL}
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "kwok", "helm")
NODE = ("kubelet", "coredns", "pause")
EXTRAS = ("jobset",)  # built only when asked for by name


def bin_dir(*, extra: bool = False) -> Path:
    """The folder of the programs as the sources are now, present or not.

    Args:
        extra: the folder of `EXTRAS`, which are keyed apart so that a benchmark's pin renames nothing else.

    Raises:
        ClusterError: Go is missing or too old.
    """
    return cache_dir() / "bin" / _key(extra)


def program_path(name: str) -> Path:
    """Where program `name` lies once built."""
    return bin_dir(extra=name in EXTRAS) / name


def missing(names: Sequence[str]) -> list[Program]:
    """Those of `names` that are not built yet, in building order."""
    unknown = sorted(set(names) - set(PROGRAMS))
    if unknown:
        raise ClusterError(f"unknown program {', '.join(unknown)}; known are: {', '.join(PROGRAMS)}")
    return [program for program in _ALL if program.name in names and not program_path(program.name).exists()]


def build(names: Sequence[str]) -> Path:
    """Build whatever of `names` is missing, and return `bin_dir()`.

    An interrupted build leaves nothing under a program's name. Concurrent builds wait for each other.

    Raises:
        ClusterError: a prerequisite is missing, the disk is full, or the compiler failed.
    """
    if missing(names):
        _require_space(len(missing(names)))
        with _lock():
            todo = missing(names)
            with Progress("build", total=len(todo)) as progress:
                for program in todo:
                    progress.start(program.name)
                    _build_one(program, progress)
                    progress.done()
    return bin_dir()


def _build_one(program: Program, progress: Progress) -> None:
    target = program_path(program.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    command = ["go", "build", "-v", *_FLAGS, "-ldflags", program.ldflags, "-o", str(unfinished), program.package]
    said: list[str] = []
    compiled = 0
    try:
        with subprocess.Popen(
            command, cwd=GO_DIR / program.module, env=_go_env(), stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line.rstrip())
                # With -v the compiler names each package it compiles, one a line.
                compiled += not re.search(r"\s", line.strip())
                progress.detail(f"{compiled} packages compiled")
        if process.returncode != 0:
            raise ClusterError(_explain(program, said))
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _explain(program: Program, said: Sequence[str]) -> str:
    text = "\n".join(said)
    if "no space left on device" in text:
        return f"building {program.name}: the disk is full; free some space (Go's cache: `go env GOCACHE`) and repeat"
    if re.search(r"dial tcp|no such host|proxyconnect|i/o timeout|TLS handshake", text):
        return f"building {program.name}: the Go module proxy cannot be reached; check GOPROXY and repeat ({said[-1]})"
    last = next((line for line in reversed(said) if line.strip()), "no output")
    return f"building {program.name} failed: {last} (run `go build {program.package}` in {GO_DIR / program.module})"


def _require_space(count: int) -> None:
    """A cold build of everything writes about 5 GiB: modules, compiled packages, programs."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    need = min(5 * _GIB, count * _GIB)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise ClusterError(
            f"disk nearly full: {free / _GIB:.1f} GiB free at {folder}, the build needs {need / _GIB:.0f} GiB; "
            "free some or set MOERL_CACHE to another disk"
        )


@contextmanager
def _lock() -> Iterator[None]:
    path = cache_dir() / "bin" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the same cache to finish", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _go_env() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


@cache
def _go_version() -> str:
    """Version and platform of the Go that the modules ask for (the go command may fetch a newer one by itself)."""
    if shutil.which("go") is None:
        raise ClusterError("Go is not installed; install Go 1.26 or later from https://go.dev/dl and put it on PATH")
    if not GO_DIR.is_dir():
        raise ClusterError(f"{GO_DIR} is missing: the local cluster is built from a checkout of the repository")
    asked = subprocess.run(
        ["go", "env", "-json", "GOVERSION", "GOOS", "GOARCH"],
        cwd=GO_DIR / "etcd",  # the module that asks for the newest Go
        env=_go_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        raise ClusterError(f"Go is too old ({asked.stderr.strip().splitlines()[-1]}); install Go 1.26 or later")
    found: dict[str, str] = json.loads(asked.stdout)
    numbers = re.match(r"go(\d+)\.(\d+)", found["GOVERSION"])
    if numbers and (int(numbers[1]), int(numbers[2])) < (1, 26):
        raise ClusterError(f"Go is too old ({found['GOVERSION']}); install Go 1.26 or later from https://go.dev/dl")
    return "-".join(found.values())


@cache
def _key(extra: bool) -> str:
    digest = hashlib.sha256(_go_version().encode())
    programs = [program for program in _ALL if (program.name in EXTRAS) == extra]
    for program in programs:
        digest.update(repr((program, program.ldflags, _FLAGS)).encode())
    for module in sorted({program.module for program in programs}):
        for path in sorted((GO_DIR / module).rglob("*")):
            if path.suffix in {".go", ".mod", ".sum"}:
                digest.update(str(path.relative_to(GO_DIR)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
