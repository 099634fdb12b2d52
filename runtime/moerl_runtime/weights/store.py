"""Pulling a weight version into a local Hugging Face folder: fetch, verify, stage, rename. No torch.

The driver calls `pull` and then tells the engine to load the folder. Bytes go from the store into the safetensors file
without ever being tensors.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Protocol

import xxhash

from .manifest import Manifest, Slice, WeightsCorrupt, WeightsGone, decode

KEEP_FOLDERS = 2
"""Local folders kept: the one that the engine may be reading and the newest."""


class Blobs(Protocol):
    """What a puller needs of the buffer client."""

    async def get_blob(self, key: str) -> bytes | None: ...


class HeadLike(Protocol):
    """What a puller needs of HEAD."""

    @property
    def version(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def manifest_key(self) -> str: ...


async def pull(buffer: Blobs, head: HeadLike, into: Path) -> Path:
    """Fetch the version that `head` names; returns its folder below `into` (`v<version>-a<attempt>`).

    A folder that is there already is complete and is returned as it is. Raises WeightsGone (read HEAD again) or
    WeightsCorrupt; neither leaves a folder behind.
    """
    target = into / f"v{head.version}-a{head.attempt}"
    if target.exists():
        return target
    manifest = await fetch_manifest(buffer, head)
    staging = into / f".staging-{os.getpid()}-v{head.version}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        await _fill(buffer, manifest, staging)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _remove_old(into, newest=target)
    return target


async def fetch_manifest(buffer: Blobs, head: HeadLike) -> Manifest:
    """The manifest that `head` names, checked against it. WeightsGone or WeightsCorrupt."""
    raw = await buffer.get_blob(head.manifest_key)
    if raw is None:
        raise WeightsGone(f"the manifest of version {head.version} is gone")
    manifest = decode(raw)
    if (manifest.version, manifest.attempt) != (head.version, head.attempt):
        raise WeightsCorrupt(
            f"HEAD names version {head.version} of attempt {head.attempt}, "
            f"its manifest says {manifest.version} of {manifest.attempt}"
        )
    if manifest.base is not None:
        raise WeightsCorrupt(f"version {head.version} is a delta on {manifest.base}; this program pulls full versions")
    return manifest


async def _fill(buffer: Blobs, manifest: Manifest, folder: Path) -> None:
    header, starts = _layout(manifest)
    wanted: dict[str, list[tuple[int, Slice, str]]] = {}
    for name, entry in manifest.tensors.items():
        for part in entry.slices:
            wanted.setdefault(part.object, []).append((starts[name] + part.at, part, name))
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + manifest.size)
        for key, parts in wanted.items():
            data = await buffer.get_blob(key)
            if data is None:
                raise WeightsGone(f"object {key} of version {manifest.version} is gone")
            pieces = await asyncio.to_thread(_verified, data, parts, key)
            for position, piece in pieces:
                stream.seek(len(header) + position)
                stream.write(piece)
    for name, text in manifest.files.items():
        (folder / name).write_text(text)


def _verified(data: bytes, parts: list[tuple[int, Slice, str]], key: str) -> list[tuple[int, memoryview]]:
    view = memoryview(data)
    pieces = []
    for position, part, name in parts:
        piece = view[part.offset : part.offset + part.length]
        if len(piece) != part.length or xxhash.xxh3_128_hexdigest(piece) != part.xxh3_128:
            raise WeightsCorrupt(f"object {key}: the bytes of {name} are not what was published")
        pieces.append((position, piece))
    return pieces


def _layout(manifest: Manifest) -> tuple[bytes, dict[str, int]]:
    """The safetensors header (8 bytes of length, JSON padded to 8) and each tensor's first byte after it.

    Source: the format's README, https://github.com/huggingface/safetensors.
    """
    starts: dict[str, int] = {}
    document: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in sorted(manifest.tensors):
        entry = manifest.tensors[name]
        starts[name] = position
        document[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [position, position + entry.size],
        }
        position += entry.size
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, starts


def _remove_old(into: Path, *, newest: Path) -> None:
    folders = sorted(into.glob("v*-a*"), key=lambda path: path.stat().st_mtime_ns)
    for path in [path for path in folders if path != newest][: -(KEEP_FOLDERS - 1) or None]:
        shutil.rmtree(path, ignore_errors=True)
