"""The two forms of a transport report: everything, for a file; and at most 4 KiB, for a container's last words.

A container's termination message is cut at 4096 bytes (kubelet), and cut JSON is no JSON: so parts go, in order of
what can best be missed, until it fits. The verdict, the request and the first reason never go.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from moerl_kernels.proof.evidence import Evidence
from moerl_kernels.proof.verdict import Outcome, Verdict

SCHEMA = 1
MAX_BYTES = 4096
_MAX_REASON = 400

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """One preflight of one pod.

    requested: transport that the job asked for. pods, rank: size of the gang and this pod's place in it. proved: in
    words, what the exchange shows and what it does not. environment: variables of the data path. file: full report.
    """

    requested: str
    on_mismatch: str
    pods: int
    rank: int
    outcome: Outcome
    verdict: Verdict
    evidence: Evidence
    proved: str
    fingerprint: str
    versions: dict[str, str | None]
    environment: dict[str, str]
    warnings: tuple[str, ...]
    seconds: float
    file: str = ""

    def full(self) -> str:
        """Everything, as indented JSON."""
        body = self._head() | {
            "contradictions": list(self.verdict.contradictions),
            "evidence": asdict(self.evidence),
            "versions": self.versions,
            "environment": self.environment,
            "warnings": list(self.warnings),
        }
        return json.dumps(body, indent=1)

    def brief(self) -> str:
        """One line of JSON of at most MAX_BYTES bytes, all ASCII."""
        exchange = self.evidence.exchange
        body = self._head() | {
            "exchange": {"kind": exchange.kind, "ranks": exchange.ranks, "hosts": exchange.hosts},
            "contradictions": [_short(text) for text in self.verdict.contradictions],
            "warnings": [_short(text) for text in self.warnings],
            "versions": {name: value for name, value in self.versions.items() if value is not None},
            "file": self.file,
        }
        body["reasons"] = [_short(text) for text in self.verdict.reasons]
        body["proved"] = _short(self.proved)
        for shrink in (
            lambda: body.pop("versions"),
            lambda: body.update(warnings=body["warnings"][:2]),
            lambda: body.pop("warnings"),
            lambda: body.update(contradictions=body["contradictions"][:2]),
            lambda: body.update(reasons=body["reasons"][:2]),
            lambda: body.pop("proved"),
            lambda: body.update(reasons=body["reasons"][:1], contradictions=[]),
            lambda: body.pop("file"),
        ):
            text = json.dumps(body, separators=(",", ":"))
            if len(text) <= MAX_BYTES:
                return text
            shrink()
        return json.dumps(body, separators=(",", ":"))

    def words(self) -> str:
        """For a person at a terminal."""
        lines = [f"{self.verdict.transport} ({self.requested} was asked for: {self.outcome})"]
        lines += [f"  {reason}" for reason in self.verdict.reasons]
        lines += [f"  against it: {text}" for text in self.verdict.contradictions]
        lines += [f"  {self.proved}"] if self.proved else []
        lines += [f"  warning: {text}" for text in self.warnings]
        lines.append(f"  data path {self.fingerprint}, {self.seconds:.1f} s" + (f"; {self.file}" if self.file else ""))
        return "\n".join(lines)

    def _head(self) -> Obj:
        return {
            "schema": SCHEMA,
            "transport": self.verdict.transport,
            "requested": _short(self.requested, 24),
            "outcome": self.outcome,
            "onMismatch": self.on_mismatch,
            "pods": self.pods,
            "rank": self.rank,
            "reasons": list(self.verdict.reasons),
            "proved": self.proved,
            "fingerprint": self.fingerprint,
            "seconds": round(self.seconds, 2),
        }


def _short(text: str, limit: int = _MAX_REASON) -> str:
    # As JSON writes it: a character outside ASCII takes six bytes or twelve.
    text = text if text.isascii() else text.encode("ascii", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
