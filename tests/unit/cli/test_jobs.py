"""What `moerl get` and `moerl describe` print."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from moerl_operator.cli.jobs import age, description, table
from moerl_operator.cli.main import main

NOW = datetime(2026, 1, 1, 1, 0, 0, tzinfo=UTC)
JOB = {
    "metadata": {"name": "j", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "status": {
        "display": {"state": "Running", "trainers": "2/2", "iteration": "5/9"},
        "conditions": [
            {
                "type": "NodesReady",
                "status": "False",
                "reason": "InsufficientCapacity",
                "message": "no p5en in us-east-1a",
                "lastTransitionTime": "2026-01-01T00:30:00Z",
            }
        ],
        "roles": [{"name": "trainer", "ready": 2, "desired": 2, "attempt": 3, "restarts": 1}],
        "nodeGroups": [{"name": "g-1", "status": "ACTIVE", "ready": 1, "desired": 2, "zone": "us-east-1a"}],
        "lastFailure": {
            "kind": "Application",
            "child": "j-trainer-a2",
            "pod": "j-trainer-a2-0",
            "container": "main",
            "reason": "OOMKilled",
            "exitCode": 137,
        },
    },
}
EVENTS = [
    {"regarding": {"uid": "u"}, "eventTime": "2026-01-01T00:59:50Z", "type": "Normal", "reason": "Ready", "note": "ok"},
    {"regarding": {"uid": "x"}, "eventTime": "2026-01-01T00:59:50Z", "reason": "NotOurs", "note": "no"},
]


def test_a_description_answers_what_why_and_since_when() -> None:
    text = "\n".join(description(JOB, EVENTS, NOW))
    for words in (
        "ns/j: Running",
        "NodesReady   False   InsufficientCapacity   30m   no p5en in us-east-1a",
        "trainer   2/2 ready   attempt 3   1 restarts",
        "g-1   ACTIVE   1/2 nodes",
        "j-trainer-a2/j-trainer-a2-0/main: OOMKilled, exit code 137",
        "10s   Normal   Ready   ok",
    ):
        assert words in text
    assert "NotOurs" not in text


def test_a_job_that_nobody_looked_at_yet_is_described_too() -> None:
    assert description({"metadata": JOB["metadata"]}, [], NOW)[0] == "ns/j: not looked at yet"


@pytest.mark.parametrize(
    ("since", "text"),
    [("2026-01-01T00:59:59Z", "1s"), ("2025-12-31T01:00:00Z", "24h"), ("2025-12-01T01:00:00Z", "31d")],
)
def test_ages(since: str, text: str) -> None:
    assert age(since, NOW) == text


def test_columns_are_aligned() -> None:
    assert table([["A", "B"], ["long", "x"]]) == "A      B\nlong   x"


def test_no_kubeconfig_is_one_line() -> None:
    result = CliRunner().invoke(main, ["get", "--kubeconfig", "/nonexistent/config"])
    assert result.exit_code == 1
    assert "no kubeconfig file at /nonexistent/config" in result.output


def test_an_unusable_kubeconfig_is_one_line() -> None:
    result = CliRunner().invoke(main, ["get"], env={"KUBECONFIG": os.devnull})
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
