"""The expert-parallel part of docs/benchmarks.md comes from the raw figures alone, and the page carries it."""

from __future__ import annotations

import copy
import json
from typing import Any

from moerl_bench import kernels_report
from moerl_bench.cli import DOCS, KERNEL_RESULTS, RESULTS


def raw() -> tuple[dict[str, Any], dict[str, Any]]:
    """(of two GPUs, of one) as they stand in the repository."""
    two, one = (json.loads((RESULTS / name).read_text()) for name in KERNEL_RESULTS)
    return two, one


def test_the_page_in_the_repository_is_what_the_raw_figures_give() -> None:
    section = kernels_report.section(*raw(), raw="../bench/results")
    assert section in (DOCS / "benchmarks.md").read_text()


def test_a_missed_target_is_called_so() -> None:
    two, one = raw()
    worse = copy.deepcopy(two)
    for row in worse["rows"]:
        for times in row["times"].values():
            times["p50"] *= 10
    before = kernels_report.section(two, one, raw="r").count("| not reached |")
    assert kernels_report.section(worse, one, raw="r").count("| not reached |") > before


def test_results_that_differ_are_counted() -> None:
    two, one = raw()
    two["stress"][1]["different"] = 3
    assert "on: 3 results differed" in kernels_report.section(two, one, raw="r")
