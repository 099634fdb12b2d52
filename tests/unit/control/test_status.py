"""When a status is written, and when it is not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_operator.control.status import only_progress_differs, same, with_degraded

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("desired", "observed", "equal"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"a": 1, "restarts": 0, "message": "", "roles": []}, True),  # defaults of the CRD
        ({"a": 1}, {"a": 1, "lastFailure": {"reason": "x"}}, False),  # to be removed
        ({"a": None}, {}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 0}]}, True),
        ({"a": True}, {"a": 1}, True),
        ({"a": "0"}, {"a": 0}, False),
        ({}, {}, True),
    ],
)
def test_same(desired: Any, observed: Any, equal: bool) -> None:
    assert same(desired, observed) is equal


@given(JSON)
def test_a_status_is_the_same_as_itself(value: Any) -> None:
    assert same(value, value)


@given(st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4))
def test_what_is_the_same_stays_the_same_with_defaults_filled_in(status: dict[str, Any]) -> None:
    assert same(status, {**status, "zero": 0, "empty": "", "none": None, "list": [], "map": {}})


def base() -> dict[str, Any]:
    return {
        "iteration": 5,
        "throughput": {"samplesPerSecond": "4"},
        "display": {"state": "Running", "iteration": "5/9", "reward": "0.1", "trainers": "2/2"},
        "conditions": [{"type": "Progressing", "status": "True", "reason": "Training", "message": "iteration 5"}],
    }


def test_figures_of_the_trainer_are_progress() -> None:
    later = base() | {"iteration": 6, "throughput": {"samplesPerSecond": "5"}}
    later["display"] = base()["display"] | {"iteration": "6/9", "reward": "0.2"}
    later["conditions"] = [base()["conditions"][0] | {"message": "iteration 6"}]
    assert only_progress_differs(later, base())


@pytest.mark.parametrize(
    "change",
    [
        {"display": {"state": "Failed"}},
        {"display": {"state": "Running", "trainers": "1/2"}},
        {"conditions": [{"type": "Progressing", "status": "False", "reason": "Stalled"}]},
        {"lastFailure": {"reason": "OOMKilled"}},
    ],
)
def test_a_change_of_state_is_not_mere_progress(change: dict[str, Any]) -> None:
    assert not only_progress_differs(base() | change, base())


def test_the_first_status_is_not_mere_progress() -> None:
    assert not only_progress_differs(base(), {})


def test_degraded_keeps_the_time_of_its_transition() -> None:
    first = with_degraded({"conditions": []}, reason="Refused", message="no", generation=1, now=NOW)
    assert first["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05+00:00".replace("+00:00", "Z")

    later = with_degraded(first, reason="Refused", message="still no", generation=2, now=NOW.replace(year=2027))

    (condition,) = later["conditions"]
    assert (condition["message"], condition["observedGeneration"]) == ("still no", 2)
    assert condition["lastTransitionTime"] == first["conditions"][0]["lastTransitionTime"]
