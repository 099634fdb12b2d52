"""Progress and report: what the trainer says reaches report.json, within its size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.agent import progress, report
from moerl_runtime.agent.cluster import ReportTarget
from moerl_runtime.agent.progress import Final, Progress


def test_the_file_is_replaced_whole_and_read_back(tmp_path: Path) -> None:
    assert progress.read(tmp_path) is None
    for iteration in (1, 2):
        progress.write(
            Progress(
                phase="Training",
                iteration=iteration,
                iterations=350,
                policy_version=iteration + 3,
                reward=0.123456,
                staleness_mean=0.5,
                staleness_max=1,
                history=[(i, i / 350) for i in range(iteration)],
            ),
            tmp_path,
        )
    document = progress.read(tmp_path)
    assert document is not None
    assert document["iteration"] == 2
    assert document["reward"] == 0.1235
    assert document["stalenessVersions"] == {"mean": 0.5, "max": 1}
    assert document["history"] == [[0, 0.0], [1, 0.0029]]
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"], "no temporary file stays"
    (tmp_path / "progress.json").write_text("{")
    assert progress.read(tmp_path) is None


def test_the_report_has_every_field_of_the_contract() -> None:
    state = Progress(
        phase="Finished",
        iteration=350,
        iterations=350,
        policy_version=350,
        final=Final(version=350, uri="s3://b/final", marker="s3://b/final/COMPLETE"),
    )
    document = json.loads(report.render(state.wire(), attempt=2, updated_at="2026-01-01T00:00:00Z"))
    assert document == {
        "schema": 1,
        "attempt": 2,
        "phase": "Finished",
        "iteration": 350,
        "iterations": 350,
        "policyVersion": 350,
        "reward": None,
        "exactMatch": None,
        "samplesPerSecond": None,
        "tokensPerSecond": None,
        "stalenessVersions": {"mean": None, "max": None},
        "restoredFrom": None,
        "final": {"version": 350, "uri": "s3://b/final", "marker": "s3://b/final/COMPLETE"},
        "lastProgressTime": None,
        "history": [],
        "dataPath": {},
        "updatedAt": "2026-01-01T00:00:00Z",
    }


@given(points=st.integers(0, 5000), extra=st.integers(0, 40_000))
def test_a_report_never_exceeds_its_size(points: int, extra: int) -> None:
    state = Progress(
        phase="Training",
        iteration=points,
        iterations=points,
        policy_version=points,
        history=[(i, 0.1234) for i in range(points)],
        data_path={"env": "x" * extra},
    )
    text = report.render(state.wire(), attempt=1)
    assert len(text.encode()) <= report.MAX_BYTES
    history = json.loads(text)["history"]
    assert len(history) <= progress.MAX_HISTORY
    if len(history) > 1:
        assert [history[0][0], history[-1][0]] == [0, points - 1]


def test_a_report_that_cannot_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="without history and data path"):
        report.render({"phase": "x" * 20_000}, attempt=1)


def test_the_target_is_the_cluster_around_the_pod() -> None:
    assert ReportTarget.from_env({}, namespace="n", name="j-report") is None
    assert ReportTarget.from_env({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, namespace="n", name="") is None
    target = ReportTarget.from_env(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, namespace="n", name="r"
    )
    assert target is not None
    assert target.url == "https://[fd00::1]:6443"
