"""Which checkpoints are complete: the marker beside each, written last. No torch, so tools and tests can look."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from . import storage

NAME = "COMPLETE"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """What a complete checkpoint says about itself. `version` is the newest weight version published before it,
    `job` the UID of the job that wrote it (empty outside Kubernetes).

    `dataset` is the buffer's snapshot (cursor, closed ids as low-water mark plus exceptions); `ledger` its counters.
    """

    attempt: int
    step: int
    version: int
    job: str
    dataset: dict[str, Any]
    ledger: dict[str, int] = field(default_factory=dict)
    exact_match: float | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, mean reward) of the lineage, so that a curve survives a restart."""
    schema: int = SCHEMA


def folder(root: str, *, attempt: int, step: int) -> str:
    """Location of one checkpoint."""
    return storage.join(root, str(attempt), str(step))


def write(root: str, marker: Marker) -> str:
    """Declare the checkpoint complete; returns the marker's location. Everything else must be durable before."""
    location = storage.join(folder(root, attempt=marker.attempt, step=marker.step), NAME)
    storage.write(location, json.dumps(asdict(marker), indent=1).encode())
    return location


def complete(root: str) -> list[tuple[int, int]]:
    """(attempt, step) of all complete checkpoints, lowest first."""
    found = []
    for name in storage.list_folder(root):
        parts = name.split("/")
        if len(parts) == 3 and parts[2] == NAME and parts[0].isdigit() and parts[1].isdigit():
            found.append((int(parts[0]), int(parts[1])))
    return sorted(found)


def latest(root: str) -> Marker | None:
    """The marker of the highest (attempt, step), None if nothing is complete. StorageError if it cannot be read."""
    found = complete(root)
    return read(root, attempt=found[-1][0], step=found[-1][1]) if found else None


def read(root: str, *, attempt: int, step: int) -> Marker:
    """One marker. StorageError if it is missing, damaged or of another schema."""
    location = storage.join(folder(root, attempt=attempt, step=step), NAME)
    raw = storage.read(location)
    if raw is None:
        raise storage.StorageError(f"{location} does not exist")
    try:
        document = json.loads(raw)
        if document["schema"] != SCHEMA:
            raise storage.StorageError(f"{location} has schema {document['schema']}, this program reads {SCHEMA}")
        known = {one.name for one in fields(Marker)}  # a later program may have added fields
        return Marker(**{key: value for key, value in document.items() if key in known})
    except (TypeError, KeyError, ValueError) as error:
        raise storage.StorageError(f"{location} is not a checkpoint marker: {error}") from error


def prune(root: str, *, keep: int) -> int:
    """Remove all but the `keep` newest complete checkpoints, marker first; returns how many went.

    Incomplete folders stay: another process may still be writing them.
    """
    old = complete(root)[:-keep]
    for attempt, step in old:
        location = folder(root, attempt=attempt, step=step)
        storage.delete(storage.join(location, NAME))
        storage.delete_folder(location)
    return len(old)
