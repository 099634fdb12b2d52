"""What AWS refused lately, per job, with the time before which it is not asked again.

Kept in memory: after a restart the first mutation is tried at once and refused anew, which costs one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from moerl_operator.core.world import AwsError

FIRST_SECONDS = 5.0
MOST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The latest refused mutation of a job."""

    error: AwsError
    failures: int
    retry_at: datetime


class Refusals:
    """Refusals by job UID, with exponential backoff and jitter."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._by_job: dict[str, Refusal] = {}

    def get(self, uid: str) -> Refusal | None:
        """The refusal that still stands."""
        return self._by_job.get(uid)

    def add(self, uid: str, error: AwsError, now: datetime) -> Refusal:
        """One more refusal: the next try is twice as far away, less up to a quarter."""
        known = self._by_job.get(uid)
        failures = known.failures + 1 if known else 1
        seconds = min(FIRST_SECONDS * 2.0 ** min(failures - 1, 16), MOST_SECONDS) * (1 - self._rng.random() / 4)
        refusal = Refusal(error, failures, now + timedelta(seconds=seconds))
        self._by_job[uid] = refusal
        return refusal

    def clear(self, uid: str) -> None:
        """A mutation of this job succeeded, or the job is gone."""
        self._by_job.pop(uid, None)
