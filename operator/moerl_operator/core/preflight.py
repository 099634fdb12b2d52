"""The last words of a pod's preflight container (moerl_kernels.proof), read with distrust: a user's image wrote them.

It is one JSON object of at most 4 KiB. Anything else is no verdict, and never an error of the operator's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MEASURED = ("EFAGDA", "EFAProxy", "NVLink", "SHM", "TCP", "Local")
UNKNOWN = "Unknown"
MAX_BYTES = 4096
_MAX_WORDS = 900
# It was told to stop (128 + SIGTERM), as when a node is taken away: that says nothing about a transport.
_INTERRUPTED = 143


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict: `effective` is one of MEASURED or Unknown, `pods` the size of the gang that was measured."""

    effective: str
    pods: int
    reasons: tuple[str, ...]
    fingerprint: str = ""

    @property
    def words(self) -> str:
        """One sentence for people."""
        text = "; ".join((f"{self.effective} was measured", *self.reasons))
        return text[:_MAX_WORDS] + (f"; data path {self.fingerprint}" if self.fingerprint else "")


def parse(text: str) -> Said | None:
    """The verdict in a termination message, None if there is none."""
    if not text or len(text) > MAX_BYTES:
        return None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    effective = raw.get("transport") if isinstance(raw, dict) else None
    if not isinstance(effective, str) or effective not in (*MEASURED, UNKNOWN):
        return None
    pods, reasons, fingerprint = raw.get("pods"), raw.get("reasons"), raw.get("fingerprint")
    return Said(
        effective=effective,
        pods=pods if type(pods) is int and 1 <= pods <= 4096 else 1,
        reasons=tuple(plain(item) for item in reasons if isinstance(item, str)) if isinstance(reasons, list) else (),
        fingerprint=plain(fingerprint)[:32] if isinstance(fingerprint, str) else "",
    )


def of_pod(status: dict[str, Any], container: str) -> tuple[str, Said | None]:
    """("Absent" | "Running" | "Done", verdict) of the container in a pod's status."""
    for state in status.get("initContainerStatuses") or ():
        if state.get("name") != container:
            continue
        ended = (state.get("state") or {}).get("terminated")
        if not ended:
            return "Running", None
        text = str(ended.get("message") or "").strip()
        said = parse(text)
        if said is None and ended.get("exitCode") not in (None, 0, _INTERRUPTED):
            words = f"the preflight gave no verdict, exit code {ended.get('exitCode')}: {plain(text[-300:])}"
            said = Said(UNKNOWN, 1, (words,))
        return "Done", said
    return "Absent", None


def plain(text: str, limit: int = 600) -> str:
    """One line. Half a surrogate pair, which JSON can hold, would come back from the API server as something else."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])
