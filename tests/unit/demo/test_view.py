"""What a person sees: the plan before anything runs, the curve, and the page."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moerl_local.demo import figures, page, plan
from moerl_local.demo.chart import curve
from moerl_local.demo.record import Record
from moerl_local.demo.view import View
from moerl_operator.api import names


def test_the_plan_needs_no_package() -> None:
    file = Path(plan.__file__)
    done = subprocess.run([sys.executable, "-I", "-S", str(file)], capture_output=True, text=True, check=True)
    assert all(step.title in done.stdout for step in plan.STEPS)


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(-1, 2)), max_size=50))
def test_a_curve_has_one_size(points: list[tuple[float, float]]) -> None:
    lines = curve(points, width=30, height=6)
    assert len(lines) == 8
    assert {len(line) for line in lines[:6]} == {36}


def test_a_rising_curve_rises() -> None:
    lines = curve([(0, 0.0), (100, 1.0)], width=20, height=4)
    first, last = lines[0][6:], lines[3][6:]
    assert first.rstrip("⠀") != ""
    assert first.index(first.strip("⠀")) > last.index(last.strip("⠀"))


@given(st.integers(-10_000, 10_000))
def test_clock_keeps_the_sign(seconds: int) -> None:
    minutes, rest = figures.clock(seconds).lstrip("-").split(":")
    assert (int(minutes) * 60 + int(rest)) * (-1 if seconds < 0 else 1) == seconds


def _pod(name: str, role: str, **status: object) -> dict:
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:05Z",
            "labels": {names.LABEL_ROLE: role},
        },
        "spec": {"containers": [{"name": "main", "image": "x"}], "nodeName": "local"},
        "status": {"phase": "Running", "podIP": "10.0.0.2", **status},
    }


@pytest.fixture
def record() -> Record:
    seen = Record(started="2026-01-01T00:00:00.000Z", operator_mode="a pod running this checkout")
    seen.applied = "2026-01-01T00:00:00.000Z"
    seen.see_job({
        "metadata": {"name": "reverse", "namespace": "demo", "managedFields": [{}]},
        "spec": {"algorithm": {"type": "GRPO"}, "storage": {"dataset": "builtin://reverse-4"}},
        "status": {
            "display": {"state": "Running", "iteration": "1/2"},
            "conditions": [{"type": "Accepted", "status": "True", "reason": "Valid", "message": "<ok> & fine"}],
            "nodeGroups": [
                {"name": "moerl-1-trainer-1", "role": "trainer", "status": "ACTIVE", "desired": 1, "ready": 1}
            ],
        },
    })  # fmt: skip
    seen.see_pods([_pod("reverse-trainer-a1-0-x", "trainer"), _pod("reverse-buffer-0", "buffer")])
    seen.see_report({"iteration": 1, "iterations": 2, "exactMatch": 0.5, "history": [[1, 0.25]]})
    return seen


class _Wellformed(HTMLParser):
    VOID = frozenset({"meta", "line", "rect", "circle", "polyline", "path", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.loads += [value for name, value in attrs if name in ("src", "href") and value]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_asks_for_nothing_outside(record: Record) -> None:
    html = page.render(record)
    parser = _Wellformed()
    parser.feed(html)
    assert parser.open == []
    assert parser.loads == []
    assert not re.search(r"url\((?!#)|@import|https?://", html)
    assert "&lt;ok&gt; &amp; fine" in html
    assert "moerl-1-trainer-1" in html


def test_a_record_survives_being_saved(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "record.json")
    assert page.render(Record.load(tmp_path / "record.json")) == page.render(record)
    assert "managedFields" not in (tmp_path / "record.json").read_text()


def test_changes_are_noted_once(record: Record) -> None:
    record.see_job(record.job)
    record.see_pods([_pod("reverse-buffer-0", "buffer")])
    assert len(record.conditions) == 1
    assert "gone" in record.pods["reverse-trainer-a1-0-x"]
    assert "gone" not in record.pods["reverse-buffer-0"]


def test_without_a_terminal_there_are_plain_lines(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    view = View(record, console=Console(force_terminal=False, width=80))
    table = "NAME      STATE     ITERATION\nreverse   Running   1/2\n"
    with view:
        view.show(table)
        view.show(table)  # nothing new within ten seconds: no line
    view.end()
    out = capsys.readouterr().out
    assert out.count("reverse   Running") == 1
    assert "\x1b" not in out
    assert "held-out exact match 0.50" in out
