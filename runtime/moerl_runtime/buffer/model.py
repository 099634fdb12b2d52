"""Words of the buffer's interface: lease, head, ledger, and what its scripts may answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class BufferFault(RuntimeError):
    """The buffer refused or its records disagree; the message says what and what to do."""


class FencedAttempt(BufferFault):
    """A newer trainer attempt has begun: this process must stop training and publishing (exit, do not retry)."""


class UnknownAttempt(BufferFault):
    """The buffer never saw `begin` of this attempt: not called, or the buffer was lost. Restart from a checkpoint."""


class StepSettled(BufferFault):
    """`take` of a step at or below the settled one: its payload is gone."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to generate one group. (incarnation, epoch) is the fencing token.

    `min_version`: samples from an older policy would be evicted as stale when their turn comes.
    """

    uid: int
    incarnation: int
    epoch: int
    prompt_index: int
    min_version: int
    worker: str


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What a worker got. `min_version` above the worker's own says: load a newer policy before you ask again.

    `finished`: the trainer wants no more groups (unless a later attempt resumes from an earlier checkpoint).
    """

    leases: tuple[Lease, ...]
    min_version: int
    finished: bool = False


class CommitResult(StrEnum):
    """What became of a commit. Only MISSING may be tried again (the payload was not there)."""

    ADMITTED = "admitted"
    DUPLICATE = "duplicate"
    FILTERED = "filtered"
    FENCED = "fenced"
    CLOSED = "closed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Head:
    """The newest published policy. `version` is numbered over all attempts; `manifest_key` names its manifest."""

    attempt: int
    version: int
    step: int
    manifest_key: str


@dataclass(frozen=True, slots=True)
class Begun:
    """What `begin` did: groups taken back to ready, groups settled with the checkpoint, the dataset cursor."""

    attempt: int
    step: int
    requeued: int
    settled: int
    cursor: int
    head: Head | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Groups by state. At any moment issued = todo + leased + ready + taken and the five closed states together."""

    issued: int = 0
    todo: int = 0
    leased: int = 0
    ready: int = 0
    taken: int = 0
    consumed: int = 0
    stale: int = 0
    filtered: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def closed(self) -> int:
        """Groups that will never move again."""
        return self.consumed + self.stale + self.filtered + self.failed + self.cancelled

    @property
    def balanced(self) -> bool:
        """True if no group is lost or counted twice."""
        return self.issued == self.todo + self.leased + self.ready + self.taken + self.closed


@dataclass(frozen=True, slots=True)
class Stats:
    """Everything that the buffer counts, for metrics and the report.

    `leases` has its own ledger: granted = active + committed + released + expired + failed + cancelled.
    `tokens` counts generated tokens: admitted, consumed, stale, filtered, cancelled.
    """

    ledger: Ledger
    leases: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    cursor: int = 0
    attempt: int = 0
    settled_step: int = 0
    finished: bool = False
    last_failure: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """A recount of the structures. `problems` is empty when counters, structures and payloads agree."""

    todo: int
    leased: int
    ready: int
    taken: int
    closed: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint keeps of the buffer: the cursor and the closed ids as low-water mark plus exceptions."""

    cursor: int
    issued: int
    low: int
    exceptions: tuple[int, ...]
