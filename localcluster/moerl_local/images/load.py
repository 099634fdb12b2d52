"""Puts an image archive into the containerd of the local cluster's node."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

from moerl_local.images.errors import ImageError

NAMESPACE = "k8s.io"  # the one that kubelet's CRI plugin looks into


def tags(path: Path) -> list[str]:
    """The names that an image archive carries."""
    with tarfile.open(path) as archive:
        handle = archive.extractfile("manifest.json")
        if handle is None:
            raise ImageError(f"{path} is no image archive: it has no manifest.json")
        return [tag for image in json.load(handle) for tag in image.get("RepoTags") or []]


def full_name(tag: str) -> str:
    """The name under which containerd keeps a short tag: `moerl-base:local` is docker.io/library/moerl-base:local."""
    return tag if "/" in tag else f"docker.io/library/{tag}"


def loaded(socket: Path) -> dict[str, str]:
    """Images in containerd: full name -> digest."""
    lines = _ctr(socket, "images", "list").splitlines()[1:]
    return {fields[0]: fields[2] for fields in map(str.split, lines) if len(fields) > 2}


def load(path: Path, socket: Path) -> list[str]:
    """Imports the archive; the names it now has. Raises ImageError with containerd's own words."""
    _ctr(socket, "images", "import", "--snapshotter=overlayfs", str(path))
    return [full_name(tag) for tag in tags(path)]


def _ctr(socket: Path, *args: str) -> str:
    if not shutil.which("ctr"):
        raise ImageError("ctr is missing: apt-get install containerd")
    if not socket.exists():
        raise ImageError(f"no containerd answers at {socket}: is the cluster up, and was it started with its node?")
    command = ["ctr", "--address", str(socket), "--namespace", NAMESPACE, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"ctr {args[0]} {args[1]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
