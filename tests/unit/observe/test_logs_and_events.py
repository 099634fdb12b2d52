"""Lines of the log, and the events that the API server will take."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from moerl_operator.core.world import PlannedEvent
from moerl_operator.kube.api import Kinds, KubeError
from moerl_operator.observe.events import NOTE_BYTES, Recorder, event_object
from moerl_operator.observe.logs import JsonFormatter, TextFormatter, configure, job_key, reconcile_id
from support.memory_kube import MemoryKube

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
JOB = {
    "apiVersion": "moerl.dev/v1alpha1",
    "kind": "MoERLJob",
    "metadata": {"name": "j", "namespace": "ns", "uid": "u"},
}


def record(message: str = "hello %s", *args: object) -> logging.LogRecord:
    return logging.LogRecord("moerl_operator.x", logging.INFO, __file__, 1, message, args or ("world",), None)


def test_a_json_line_names_the_job_and_the_reconcile() -> None:
    job, run = job_key.set("ns/j"), reconcile_id.set("abcd")
    try:
        entry = json.loads(JsonFormatter().format(record()))
    finally:
        job_key.reset(job)
        reconcile_id.reset(run)
    assert (entry["message"], entry["job"], entry["reconcile"], entry["level"]) == (
        "hello world",
        "ns/j",
        "abcd",
        "info",
    )
    assert "job" not in json.loads(JsonFormatter().format(record()))


def test_text_is_one_line_with_the_job_in_front() -> None:
    token = job_key.set("ns/j")
    try:
        line = TextFormatter().format(record())
    finally:
        job_key.reset(token)
    assert line.endswith("I [ns/j] hello world")
    assert "\n" not in line


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_libraries_speak_from_warning_on(log_format: str) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure(log_format=log_format, level="debug")
        assert not logging.getLogger("botocore.hooks").isEnabledFor(logging.INFO)
        assert logging.getLogger("moerl_operator").isEnabledFor(logging.DEBUG)
    finally:
        root.handlers, root.level = handlers, level


def test_an_event_has_what_events_v1_requires() -> None:
    event = event_object(JOB, PlannedEvent("Warning", "Failed", "it broke", "Restart"), NOW, "pod-1")
    assert event["eventTime"] == "2026-01-02T03:04:05.678901Z"
    assert (event["reportingController"], event["reportingInstance"]) == ("moerl.dev/operator", "pod-1")
    assert (event["type"], event["reason"], event["action"], event["note"]) == (
        "Warning",
        "Failed",
        "Restart",
        "it broke",
    )
    assert event["regarding"]["uid"] == "u"
    assert event["metadata"]["namespace"] == "ns"


def test_a_long_note_is_cut_at_a_whole_character() -> None:
    note = event_object(JOB, PlannedEvent("Normal", "R", "ü" * 2000), NOW, "i")["note"]
    assert len(note.encode()) <= NOTE_BYTES
    assert note.endswith("…")


async def test_the_same_words_are_said_once_in_ten_minutes() -> None:
    kube = MemoryKube()
    recorder = Recorder(kube, identity="i")
    event = PlannedEvent("Normal", "Ready", "all roles are ready")
    for minutes in (0, 1, 9, 11):
        await recorder.post(JOB, (event,), NOW + timedelta(minutes=minutes))
    assert len(await kube.list(Kinds.EVENT)) == 2


async def test_a_refused_event_stops_nothing() -> None:
    kube = MemoryKube()
    kube.failures = [KubeError(403, "Forbidden", "no")]
    recorder = Recorder(kube, identity="i")
    await recorder.post(JOB, (PlannedEvent("Normal", "A", "a"), PlannedEvent("Normal", "B", "b")), NOW)
    assert [event["reason"] for event in await kube.list(Kinds.EVENT)] == ["B"]
