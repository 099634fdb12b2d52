"""The report is read with distrust, and its numbers are rounded."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from moerl_operator.api.status import Status
from moerl_operator.core.conditions import Conditions, reason_word
from moerl_operator.core.progress import Report, parse
from support.simulated_world import START, World, job_spec, stamp

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "phase",
    "iteration",
    "iterations",
    "policyVersion",
    "reward",
    "samplesPerSecond",
    "tokensPerSecond",
    "lastProgressTime",
    "final",
    "dataPath",
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_nothing_in_a_report_is_an_error(raw: dict[str, object]) -> None:
    parse(json.dumps(raw))


@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    parse(text)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "1e999", '{"iteration": 1e999}', "x" * 20_000, "[" * 5000])
def test_garbage_says_nothing(text: str) -> None:
    assert parse(text) == Report()


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (46.234, "46.2"),
        (0.01234, "0.012"),
        (987.6, "988"),
        (1234567.0, "1230000"),
        (0, "0"),
        (-1, None),
        (float("nan"), None),
        (True, None),
        ("9", None),
    ],
)
def test_rates_have_three_digits(rate: object, shown: str | None) -> None:
    assert parse(json.dumps({"samplesPerSecond": rate})).samples_per_second == shown


def test_a_garbage_report_gives_a_status_that_the_schema_takes() -> None:
    world = World()
    world.run(8)
    world.report(
        json.dumps(
            {
                "iteration": "7",
                "reward": {},
                "policyVersion": -3,
                "lastProgressTime": "yesterday",
                "final": {"uri": 5, "marker": []},
                "dataPath": {"transport": {"effective": "Warp"}},
            }
        )
    )
    world.run(1)
    assert world.job is not None
    Status.model_validate(world.job["status"])
    assert "iteration" not in world.job["status"]
    assert world.job["status"]["transport"]["effective"] == "Unknown"


@pytest.mark.parametrize(
    ("requested", "measured", "on_mismatch", "status", "failed"),
    [
        ("Auto", "TCP", "Fail", "True", "False"),
        ("TCP", "TCP", "Fail", "True", "False"),
        ("TCP", "SHM", "Warn", "False", "False"),
        ("TCP", "SHM", "Fail", "False", "True"),
    ],
)
def test_transport_is_compared_with_what_was_asked(
    requested: str, measured: str, on_mismatch: str, status: str, failed: str
) -> None:
    wish = {"backend": "Auto", "transport": requested, "onMismatch": on_mismatch}
    world = World(job_spec(communication={"expertParallel": wish}))
    world.run(8)
    world.report(json.dumps({"dataPath": {"transport": {"effective": measured, "evidence": "counters"}}}))
    world.run(1)
    assert world.condition("TransportVerified")["status"] == status
    assert world.condition("Failed")["status"] == failed
    if failed == "False" and status == "False":
        assert world.state() == "Degraded"


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_times_at_the_ends_of_the_calendar_stop_no_reconcile(time: str) -> None:
    world = World()
    world.run(8)
    world.report(json.dumps({"lastProgressTime": time, "iteration": 3}))
    world.run(1)
    assert world.job is not None
    assert world.job["status"]["iteration"] == 3
    assert "lastProgressTime" not in world.job["status"]


def test_words_of_a_report_come_back_from_the_server_as_they_went() -> None:
    """Half a surrogate pair would be replaced there, and the status be written again for ever."""
    proof = {"effective": "TCP", "evidence": "a\ud800b\x00\n"}
    found = parse(json.dumps({"dataPath": {"transport": proof}, "final": {"uri": "s3://\ud800"}}))
    assert (found.transport_evidence, found.final_uri) == ("a b  ", "s3:// ")


def test_times_move_only_with_the_status() -> None:
    old = {
        "Ready": {
            "type": "Ready",
            "status": "False",
            "reason": "A",
            "message": "",
            "lastTransitionTime": "2020-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
    }
    conditions = Conditions(old, 2, START)
    conditions.set("Ready", False, "B", "other words")
    found = next(c for c in conditions.render() if c["type"] == "Ready")
    assert found["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert (found["reason"], found["observedGeneration"]) == ("B", 2)
    conditions.set("Ready", True, "C")
    assert next(c for c in conditions.render() if c["type"] == "Ready")["lastTransitionTime"] == stamp(START)


def test_final_conditions_are_never_set_back() -> None:
    old = {"Complete": {"type": "Complete", "status": "True", "reason": "A", "lastTransitionTime": stamp(START)}}
    conditions = Conditions(old, 2, START)
    conditions.set("Complete", False, "NotFinished")
    assert conditions.is_true("Complete")
    assert next(c for c in conditions.render() if c["type"] == "Complete")["reason"] == "A"


@pytest.mark.parametrize(
    ("code", "word"),
    [("Client.InternalError", "ClientInternalError"), ("", "Unknown"), ("404", "Unknown"), ("X" * 99, "X" * 63)],
)
def test_reasons_are_words(code: str, word: str) -> None:
    assert reason_word(code) == word
