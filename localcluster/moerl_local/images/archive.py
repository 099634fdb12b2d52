"""Writes a folder as a one-layer image archive, so that a base image needs no container engine.

The format is `docker save`'s (https://github.com/moby/docker-image-spec, "combined image JSON + filesystem
changeset"), which docker load, ctr images import and kind load all read.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moerl_local.images.errors import ImageError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Config:
    """What a container of the image starts with."""

    env: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def architecture() -> str:
    """This machine's architecture as image manifests spell it."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ImageError(f"images can be made on {' and '.join(ARCHITECTURES)}, this machine is {machine}")
    return ARCHITECTURES[machine]


def write(root: Path, target: Path, *, tag: str, config: Config) -> int:
    """Writes `root` (a root file system) to `target` as image `tag`; the size in bytes of its one layer.

    Times stay as they are: Python checks its compiled files against them. Needs GNU tar, and the right to read
    every file.
    """
    layer = target.with_suffix(".layer")
    command = [
        "tar", "--create", f"--file={layer}", f"--directory={root}", "--numeric-owner", "--sort=name",
        "--one-file-system", ".",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ImageError(f"tar of {root} failed: {done.stderr.strip() or done.returncode}")
        _assemble(layer, target, tag=tag, config=config)
        return layer.stat().st_size
    finally:
        layer.unlink(missing_ok=True)


def _assemble(layer: Path, target: Path, *, tag: str, config: Config) -> None:
    with layer.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    document: dict[str, Any] = {
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": [f"{k}={v}" for k, v in config.env.items()],
            "Cmd": list(config.command),
            "Labels": dict(config.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "moerl image base"}],
    }
    body = json.dumps(document, sort_keys=True).encode()
    name = f"{hashlib.sha256(body).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}]
    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, name, body)
        with layer.open("rb") as handle:
            info = tarfile.TarInfo(f"{digest}/layer.tar")
            info.size = layer.stat().st_size
            archive.addfile(info, handle)
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    partial.replace(target)


def _add(archive: tarfile.TarFile, name: str, body: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(body)
    archive.addfile(info, io.BytesIO(body))
