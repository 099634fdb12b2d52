"""The report ConfigMap, read with distrust: it is written by programs in the user's pods.

Anything that is missing or of the wrong type is absent, never an error; numbers are rounded, since
the status is not a place for fast-changing data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moerl_operator.api import names
from moerl_operator.core.preflight import MEASURED, plain
from moerl_operator.core.view import View, parse_time
from moerl_operator.manifests.support import REPORT_KEY

MAX_REPORT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Report:
    """What the trainer's agent last said; every field may be absent."""

    phase: str | None = None
    attempt: int | None = None
    iteration: int | None = None
    iterations: int | None = None
    policy_version: int | None = None
    reward: str | None = None
    samples_per_second: str | None = None
    tokens_per_second: str | None = None
    last_progress: datetime | None = None
    final_uri: str | None = None
    final_marker: str | None = None
    transport: str | None = None
    transport_evidence: str | None = None


def read(view: View) -> Report:
    """The report of a job, empty when there is none or it cannot be read."""
    wanted = names.report(view.name)
    data: Mapping[str, Any] = next(
        (c.get("data") or {} for c in view.snap.config_maps if c["metadata"]["name"] == wanted), {}
    )
    return parse(str(data.get(REPORT_KEY) or ""))


def parse(text: str) -> Report:
    """Parse report.json."""
    if not text or len(text) > MAX_REPORT_BYTES:
        return Report()
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return Report()
    if not isinstance(raw, dict):
        return Report()
    final = _object(raw.get("final"))
    proof = _object(_object(raw.get("dataPath")).get("transport"))
    effective = _text(proof.get("effective"), 24)
    return Report(
        phase=_text(raw.get("phase"), 40),
        attempt=_count(raw.get("attempt")),
        iteration=_count(raw.get("iteration")),
        iterations=_count(raw.get("iterations")),
        policy_version=_count(raw.get("policyVersion")),
        reward=_decimal(raw.get("reward"), 2),
        samples_per_second=_rate(raw.get("samplesPerSecond")),
        tokens_per_second=_rate(raw.get("tokensPerSecond")),
        last_progress=_moment(raw.get("lastProgressTime")),
        final_uri=_text(final.get("uri"), 1024),
        final_marker=_text(final.get("marker"), 1024),
        transport=effective if effective in MEASURED else None,
        transport_evidence=_text(proof.get("evidence"), 1024),
    )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 2**53 else None


def _decimal(value: object, digits: int) -> str | None:
    number = _number(value)
    return f"{number:.{digits}f}" if number is not None and abs(number) < 1e9 else None


def _rate(value: object) -> str | None:
    """Three significant digits, without an exponent."""
    number = _number(value)
    if number is None or not 0 <= number < 1e15:
        return None
    if number == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(number)))
    return f"{number:.{min(digits, 3)}f}" if number < 100 else str(int(float(f"{number:.3g}")))


def _moment(value: object) -> datetime | None:
    """A time that can be added to and shown in another zone; the first and the last years of the calendar cannot."""
    found = parse_time(value)
    return found if found is not None and 2000 <= found.year < 9000 else None


def _text(value: object, limit: int) -> str | None:
    return plain(value, limit) if isinstance(value, str) and value else None
