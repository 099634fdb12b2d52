"""Telling what ended a pod: the program, or the machine under it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from moerl_operator.core import failures

NOW = datetime(2026, 11, 30, tzinfo=UTC)
Obj = dict[str, Any]


def pod(*, phase: str = "Failed", deleted: bool = False, conditions: list[Obj] | None = None, **status: Any) -> Obj:
    meta: Obj = {"name": "p-0-x"} | ({"deletionTimestamp": "2026-11-30T00:00:00Z"} if deleted else {})
    return {"metadata": meta, "status": {"phase": phase, "conditions": conditions or []} | status}


def ended(code: int, reason: str = "Error", name: str = "main", at: str = "2026-11-30T00:00:00Z", **more: Any) -> Obj:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at} | more}}


def disrupted(reason: str) -> list[Obj]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}]


@pytest.mark.parametrize(
    ("found", "kind", "reason"),
    [
        (pod(containerStatuses=[ended(1)]), "Application", "Error"),
        (pod(containerStatuses=[ended(137, "OOMKilled")]), "Application", "OOMKilled"),
        (pod(containerStatuses=[ended(137)]), "Application", "Error"),
        (pod(containerStatuses=[ended(137)], deleted=True), "Infrastructure", "PodDeleted"),
        (pod(containerStatuses=[ended(143)]), "Infrastructure", "Interrupted"),
        (pod(containerStatuses=[ended(143)], deleted=True), "Infrastructure", "PodDeleted"),
        (
            pod(containerStatuses=[ended(1)], conditions=disrupted("PreemptionByScheduler")),
            "Infrastructure",
            "PreemptionByScheduler",
        ),
        (
            pod(phase="Running", conditions=disrupted("EvictionByEvictionAPI")),
            "Infrastructure",
            "EvictionByEvictionAPI",
        ),
        (pod(reason="NodeShutdown"), "Infrastructure", "NodeShutdown"),
        (pod(reason="UnexpectedAdmissionError"), "Infrastructure", "UnexpectedAdmissionError"),
        (pod(reason="Evicted", message="The node was low on memory"), "Application", "Evicted"),
        (pod(initContainerStatuses=[ended(3, name="prepare")]), "Application", "Error"),
    ],
)
def test_kinds(found: Obj, kind: str, reason: str) -> None:
    failure = failures.of_pod(found, NOW)
    assert failure is not None
    assert (failure.kind, failure.reason) == (kind, reason)


def test_a_pod_that_did_not_end_badly_is_no_failure() -> None:
    assert failures.of_pod(pod(phase="Succeeded"), NOW) is None
    assert failures.of_pod(pod(phase="Running"), NOW) is None


def test_the_container_that_ended_first_is_the_cause() -> None:
    found = failures.of_pod(
        pod(
            containerStatuses=[
                ended(1, name="main", at="2026-11-30T00:00:01Z", message="boom"),
                ended(2, name="helper", at="2026-11-30T00:00:02Z"),
            ]
        ),
        NOW,
    )
    assert found is not None
    assert (found.container, found.exit_code, found.message) == ("main", 1, "boom")


def job(message: str, reason: str = "PodFailurePolicy") -> Obj:
    return {
        "metadata": {"name": "j"},
        "status": {
            "conditions": [
                {
                    "type": "FailureTarget",
                    "status": "True",
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": "2026-11-30T00:00:00Z",
                }
            ]
        },
    }


def test_the_pod_that_the_job_names_is_the_cause_not_those_it_killed() -> None:
    first = pod(containerStatuses=[ended(9)]) | {"metadata": {"name": "j-1-aaaaa"}}
    other = pod(containerStatuses=[ended(143, at="2026-11-29T00:00:00Z")]) | {"metadata": {"name": "j-0-bbbbb"}}
    message = "Container main for pod ml/j-1-aaaaa failed with exit code 9 matching FailJob rule at index 1"
    assert failures.of_attempt(job(message), [other, first], NOW).exit_code == 9


@pytest.mark.parametrize(
    ("message", "kind", "reason", "code"),
    [
        (
            "Container main for pod ml/j-1-aaaaa failed with exit code 9 matching FailJob rule at index 1",
            "Application",
            "Error",
            9,
        ),
        (
            "Container main for pod ml/j-1-aaaaa failed with exit code 143 matching FailJob rule at index 1",
            "Infrastructure",
            "Interrupted",
            143,
        ),
        (
            "Pod ml/j-1-aaaaa has condition DisruptionTarget matching FailJob rule at index 0",
            "Infrastructure",
            "DisruptionTarget",
            None,
        ),
    ],
)
def test_the_jobs_message_alone_is_enough(message: str, kind: str, reason: str, code: int | None) -> None:
    found = failures.of_attempt(job(message), [], NOW)
    assert (found.kind, found.reason, found.exit_code, found.pod) == (kind, reason, code, "j-1-aaaaa")


def test_a_bare_failure_keeps_the_servers_words() -> None:
    found = failures.of_attempt(job("Job has reached the specified backoff limit", "BackoffLimitExceeded"), [], NOW)
    assert (found.kind, found.reason) == ("Application", "BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (
            {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
            "CrashLoopBackOff",
            "crashes: OOMKilled, exit code 137",
        ),
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}},
            "CreateContainerConfigError",
            'secret "x" not found',
        ),
        ({"waiting": {"reason": "ImagePullBackOff"}}, "ImagePullBackOff", "image i cannot be pulled"),
    ],
)
def test_containers_that_do_not_start(state: Obj, reason: str, words: str) -> None:
    status = {
        "name": "main",
        "image": "i",
        "state": state,
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }
    found = failures.waiting_trouble(pod(phase="Pending", containerStatuses=[status]))
    assert found is not None
    assert found[0] == reason
    assert words in found[1]
    assert "container main of pod p-0-x" in found[1]


def test_ordinary_waiting_is_no_trouble() -> None:
    creating = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    assert failures.waiting_trouble(pod(phase="Pending", containerStatuses=[creating])) is None


def test_a_pod_that_fits_nowhere_says_the_schedulers_words() -> None:
    found = failures.waiting_trouble(
        pod(
            phase="Pending",
            conditions=[
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes: too few GPUs",
                }
            ],
        )
    )
    assert found == ("Unschedulable", "pod p-0-x: 0/3 nodes: too few GPUs")
