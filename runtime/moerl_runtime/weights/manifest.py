"""The manifest of one weight version: Hugging Face tensor names to slices of immutable objects.

A manifest is written after its objects and named by HEAD after that, so a reader that sees it can rely on all of it.
No torch: drivers read manifests.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
"""Element sizes of safetensors' data types."""


class WeightsError(RuntimeError):
    """A weight version cannot be used; the message says why."""


class WeightsGone(WeightsError):
    """An object is no longer there, as happens when a newer version replaced it: read HEAD again."""


class WeightsCorrupt(WeightsError):
    """An object's bytes or a manifest's content are not what was published."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes [offset, offset + length) of an object are bytes [at, at + length) of the tensor (row-major)."""

    object: str
    offset: int
    length: int
    at: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor is. The slices cover it without gap or overlap, in order of `at`."""

    dtype: str
    shape: tuple[int, ...]
    slices: tuple[Slice, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version. `base` is the version that a delta builds on; None for a full version.

    `files` are the small text files of the model folder (config.json ...), by name.
    """

    version: int
    attempt: int
    step: int
    base: int | None
    tensors: dict[str, TensorEntry]
    files: dict[str, str]

    @property
    def key(self) -> str:
        """The manifest's key in the store."""
        return manifest_key(version=self.version, attempt=self.attempt)

    @property
    def objects(self) -> list[str]:
        """Keys of all objects, in order of first use."""
        return list(dict.fromkeys(part.object for entry in self.tensors.values() for part in entry.slices))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.size for entry in self.tensors.values())


def prefix(*, version: int, attempt: int) -> str:
    """Key prefix of all that belongs to a version. The attempt is in it: a superseded trainer overwrites nothing."""
    return f"v/{version:010d}/a{attempt}/"


def manifest_key(*, version: int, attempt: int) -> str:
    """Key of the manifest of a version."""
    return prefix(version=version, attempt=attempt) + "manifest.json"


def object_key(*, version: int, attempt: int, rank: int, number: int) -> str:
    """Key of one object; every rank writes its own."""
    return prefix(version=version, attempt=attempt) + f"r{rank}-{number:06d}"


def version_of(key: str) -> int | None:
    """The version that a stored key belongs to, None for a foreign key."""
    parts = key.split("/")
    return int(parts[1]) if len(parts) == 4 and parts[0] == "v" and parts[1].isdigit() else None


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON."""
    tensors = {
        name: [entry.dtype, list(entry.shape), [[p.object, p.offset, p.length, p.at, p.xxh3_128] for p in entry.slices]]
        for name, entry in manifest.tensors.items()
    }
    document = {
        "schema": SCHEMA,
        "version": manifest.version,
        "attempt": manifest.attempt,
        "step": manifest.step,
        "base": manifest.base,
        "files": manifest.files,
        "tensors": tensors,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode(data: bytes) -> Manifest:
    """Parse and check a manifest. WeightsCorrupt names what is wrong."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["schema"] != SCHEMA:
            raise WeightsCorrupt(
                f"weight manifest has schema {document['schema']}, this program reads {SCHEMA}: "
                "run trainer and rollouts of one version of the runtime image"
            )
        manifest = Manifest(
            version=int(document["version"]),
            attempt=int(document["attempt"]),
            step=int(document["step"]),
            base=document["base"],
            files={str(name): str(text) for name, text in document["files"].items()},
            tensors={
                name: TensorEntry(dtype, tuple(shape), tuple(Slice(*part) for part in parts))
                for name, (dtype, shape, parts) in document["tensors"].items()
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsCorrupt(f"weight manifest is not readable: {error}") from error
    for name, entry in manifest.tensors.items():
        _check(name, entry)
    if any("/" in name or name.startswith(".") for name in manifest.files):
        raise WeightsCorrupt("weight manifest names a file outside the model folder")
    return manifest


def _check(name: str, entry: TensorEntry) -> None:
    if entry.dtype not in DTYPE_BYTES:
        raise WeightsCorrupt(f"tensor {name} has the unknown data type {entry.dtype}")
    reached = 0
    for part in entry.slices:
        if part.at != reached or part.length <= 0:
            raise WeightsCorrupt(f"tensor {name} is not covered without gap from byte {reached}")
        reached += part.length
    if reached != entry.size:
        raise WeightsCorrupt(f"tensor {name} has {reached} bytes in slices, its shape needs {entry.size}")
