"""Publishing a weight version: objects first, then the manifest, then HEAD.

Works on raw bytes, so it needs no torch; `model.state` makes them from a model. The first publish of a process is
numbered above every version that HEAD or the store shows, so a version is never reused over restarts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash

from moerl_runtime.buffer.client import Buffer

from .manifest import Manifest, Slice, TensorEntry, encode, object_key, version_of

OBJECT_BYTES = 1 << 20
"""Redis moves values of 1 MiB at 1.2 GB/s a connection and 4 MiB at 0.8 (measured), so objects are of about 1 MiB."""


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor as safetensors would store it: data type name, shape and row-major little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Publisher:
    """Publishes the versions of one trainer process (rank 0 of `attempt`) and removes what nobody needs any more."""

    def __init__(self, buffer: Buffer, *, attempt: int, keep: int, highest_seen: int) -> None:
        """`keep` newest versions stay; `highest_seen` is from `highest_version` and the checkpoint."""
        self._buffer = buffer
        self._attempt = attempt
        self._keep = keep
        self._version = highest_seen
        self._live: dict[int, list[str]] = {}

    @property
    def version(self) -> int:
        """The newest version that exists anywhere as far as this process knows."""
        return self._version

    async def adopt(self) -> None:
        """Learn the keys of earlier processes, so that they are removed in their turn."""
        for key in await self._buffer.list_blobs("v/"):
            version = version_of(key)
            if version is not None:
                self._live.setdefault(version, []).append(key)

    async def publish(self, tensors: Mapping[str, TensorBytes], files: Mapping[str, str], *, step: int) -> int:
        """Publish the next version and move HEAD to it; returns its number.

        Raises FencedAttempt when a newer attempt has begun. If the connection fails half-way, HEAD is where it was and
        the number is spent: the next call takes another one.
        """
        version = self._version = self._version + 1
        entries: dict[str, TensorEntry] = {}
        keys: list[str] = []
        for number, (data, parts) in enumerate(_pack(tensors)):
            key = object_key(version=version, attempt=self._attempt, rank=0, number=number)
            await self._buffer.put_blob(key, data)
            keys.append(key)
            for part in parts:
                _add(entries, tensors, part, key)
        manifest = Manifest(
            version=version, attempt=self._attempt, step=step, base=None, tensors=entries, files=dict(files)
        )
        await self._buffer.put_blob(manifest.key, encode(manifest))
        self._live[version] = [*keys, manifest.key]
        moved = await self._buffer.set_head(self._attempt, version, manifest.key, step=step)
        if not moved:
            raise RuntimeError(f"HEAD is already beyond version {version} of attempt {self._attempt}")
        await self._remove_old()
        return version

    async def _remove_old(self) -> None:
        for version in sorted(self._live)[: -self._keep]:
            await self._buffer.delete_blobs(self._live[version])
            del self._live[version]


async def highest_version(buffer: Buffer) -> int:
    """The highest version that HEAD or any stored object shows, 0 if there is none."""
    head = await buffer.head()
    stored = [version_of(key) or 0 for key in await buffer.list_blobs("v/")]
    return max([head.version if head else 0, *stored])


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    offset: int
    length: int
    at: int
    digest: str


def _pack(tensors: Mapping[str, TensorBytes]) -> Iterator[tuple[bytes, list[_Part]]]:
    """Cut the tensors, in name order, into objects of at most OBJECT_BYTES; large tensors get several slices."""
    chunk, parts = bytearray(), list[_Part]()
    for name in sorted(tensors):
        data = tensors[name].data
        at = 0
        while at < len(data):
            piece = data[at : at + OBJECT_BYTES - len(chunk)]
            parts.append(_Part(name, len(chunk), len(piece), at, xxhash.xxh3_128_hexdigest(piece)))
            chunk += piece
            at += len(piece)
            if len(chunk) == OBJECT_BYTES:
                yield bytes(chunk), parts
                chunk, parts = bytearray(), []
    if parts:
        yield bytes(chunk), parts


def _add(entries: dict[str, TensorEntry], tensors: Mapping[str, TensorBytes], part: _Part, key: str) -> None:
    before = entries[part.name].slices if part.name in entries else ()
    tensor = tensors[part.name]
    entries[part.name] = TensorEntry(
        tensor.dtype, tensor.shape, (*before, Slice(key, part.offset, part.length, part.at, part.digest))
    )
