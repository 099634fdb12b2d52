"""Paths, stream events and error bodies as an API server writes them."""

from __future__ import annotations

import json

import pytest

from moerl_operator.kube.api import Kinds, KubeError
from moerl_operator.kube.wire import Request, error_of, path_of, typed, watch_event


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ((Kinds.POD,), "/api/v1/pods"),
        ((Kinds.POD, "ns"), "/api/v1/namespaces/ns/pods"),
        ((Kinds.NODE, "ignored", "n1"), "/api/v1/nodes/n1"),
        ((Kinds.MOERL_JOB, "ns", "j", "status"), "/apis/moerl.dev/v1alpha1/namespaces/ns/moerljobs/j/status"),
        ((Kinds.CONFIG_MAP, "ns", "a/b"), "/api/v1/namespaces/ns/configmaps/a%2Fb"),
    ],
)
def test_path_of(args: tuple[object, ...], path: str) -> None:
    assert path_of(*args) == path  # type: ignore[arg-type]


def test_the_body_says_its_type_whatever_the_caller_left_out() -> None:
    assert typed(Kinds.JOB, {"metadata": {"name": "x"}}) == {
        "metadata": {"name": "x"},
        "apiVersion": "batch/v1",
        "kind": "Job",
    }


def test_an_error_event_ends_a_watch() -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version"}}
    with pytest.raises(KubeError, match="too old") as error:
        watch_event(json.dumps(gone).encode())
    assert error.value.status == 410


def test_the_servers_words_become_the_error() -> None:
    body = json.dumps({"kind": "Status", "reason": "Invalid", "message": "spec.x: bad"})
    error = error_of(Request("create", Kinds.POD, "/p"), 422, "Unprocessable", body)
    assert (error.reason, error.message, error.invalid) == ("Invalid", "spec.x: bad", True)


@pytest.mark.parametrize("body", ["<html>502 Bad Gateway</html>", "", "[]", '"text"'])
def test_a_body_that_is_no_status_still_makes_an_error(body: str) -> None:
    error = error_of(Request("get", Kinds.POD, "/p"), 502, "Bad Gateway", body)
    assert error.retriable
    assert "get /p" in error.message
