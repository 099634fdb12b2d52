"""The rollout part of docs/benchmarks.md comes from the raw figures alone, and calls a missed target missed."""

from __future__ import annotations

import json
from typing import Any

from moerl_bench import rollout_report
from moerl_bench.cli import DOCS, RESULTS, ROLLOUT_RESULT


def raw() -> dict[str, Any]:
    """As it stands in the repository."""
    found: dict[str, Any] = json.loads((RESULTS / ROLLOUT_RESULT).read_text())
    return found


def test_the_page_in_the_repository_is_what_the_raw_figures_give() -> None:
    section = rollout_report.section(raw(), raw=f"../bench/results/{ROLLOUT_RESULT}")
    assert section in (DOCS / "benchmarks.md").read_text()


def test_a_missed_target_is_called_so() -> None:
    slow = raw()
    slow["seconds"]["NVLink graph"] = slow["seconds"]["NCCLAllToAll graph"]
    assert "not reached" in rollout_report.section(slow, raw="r")
    assert "not reached" not in rollout_report.section(raw(), raw="r")
