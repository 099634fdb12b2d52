"""TransportVerified from what the pods' preflights said, and what becomes of a job whose transport is another one."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.api.status import Status
from moerl_operator.core import preflight
from support.simulated_world import World, job_spec

Obj = dict[str, Any]


def said(transport: str, *, pods: int = 2, reason: str = "interfaces sent 8.0 MiB", **more: Any) -> str:
    return json.dumps({"transport": transport, "pods": pods, "reasons": [reason], "fingerprint": "ab12", **more})


def world(requested: str = "TCP", on_mismatch: str = "Fail", **changes: Any) -> World:
    """A native job of two trainers and two rollout replicas whose pods run and have not said anything."""
    wish = {"backend": "Auto", "transport": requested, "onMismatch": on_mismatch}
    made = World(job_spec(communication={"expertParallel": wish}, **changes))
    made.run(8)
    assert len(made.live_pods("trainer")) == 2
    return made


def tell(made: World, role: str, message: str | None, *, code: int = 0, only: int | None = None) -> None:
    """The preflights of a role's pods end with these last words; None: they still run."""
    for index, pod in enumerate(made.live_pods(role)):
        if only is not None and index != only:
            continue
        state: Obj = {"running": {}}
        if message is not None:
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}}
        pod["status"]["initContainerStatuses"] = [{"name": "preflight", "state": state}]


def verified(made: World) -> tuple[str, str]:
    made.reconcile()
    assert made.job is not None
    Status.model_validate(made.job["status"])
    found = made.condition("TransportVerified")
    return found["status"], found["reason"]


def transport(made: World) -> Obj:
    assert made.job is not None
    found: Obj = made.job["status"]["transport"]
    return found


def test_a_gang_that_measured_what_was_asked_for() -> None:
    made = world()
    assert verified(made) == ("Unknown", "NotReported")
    tell(made, "trainer", None)
    assert verified(made) == ("Unknown", "PreflightRunning")
    tell(made, "trainer", said("TCP"), only=0)
    assert verified(made) == ("Unknown", "PreflightRunning"), "the other pod of the gang is still at it"
    tell(made, "trainer", said("TCP"))
    assert verified(made) == ("True", "TransportMatches")
    assert made.condition("TransportVerified")["message"] == "TCP was measured, as was asked for"
    found = transport(made)
    assert (found["requested"], found["effective"]) == ("TCP", "TCP")
    assert found["evidence"].startswith("pod demo-trainer-a1-")
    assert "interfaces sent 8.0 MiB; data path ab12" in found["evidence"]
    assert made.job is not None
    assert made.job["status"]["display"]["transport"] == "TCP"


def test_a_replica_that_starts_anew_takes_no_proof_away() -> None:
    made = world()
    tell(made, "trainer", said("TCP"))
    assert verified(made) == ("True", "TransportMatches")
    tell(made, "rollout", None)
    assert verified(made) == ("True", "TransportMatches")


@pytest.mark.parametrize(("on_mismatch", "failed"), [("Fail", "True"), ("Warn", "False")])
def test_another_transport(on_mismatch: str, failed: str) -> None:
    made = world("EFAGDA", on_mismatch, **gpu_roles())
    tell(made, "trainer", said("TCP", reason="there is no EFA adapter"), code=3 if on_mismatch == "Fail" else 0)
    assert verified(made) == ("False", "TransportMismatch")
    message = made.condition("TransportVerified")["message"]
    assert message.startswith("EFAGDA was asked for; pod demo-trainer-a1-")
    assert "TCP was measured; there is no EFA adapter" in message
    assert made.condition("Failed")["status"] == failed
    if failed == "True":
        assert made.condition("Failed")["reason"] == "TransportMismatch"
        assert made.condition("Failed")["message"] == message
        made.run(5)
        assert made.condition("TransportVerified")["status"] == "False", "it stays after the pods have gone"
    else:
        assert made.condition("Degraded")["reason"] == "TransportMismatch"
        assert message in made.condition("Degraded")["message"]


def gpu_roles() -> Obj:
    spec = job_spec()
    spec["trainer"]["nodes"]["instanceTypes"] = ["p5en.48xlarge"]
    spec["rollout"]["pools"][0]["nodes"]["instanceTypes"] = ["p5en.48xlarge"]
    return {"trainer": spec["trainer"], "rollout": spec["rollout"]}


@pytest.mark.parametrize(
    ("effective", "expected"),
    [
        ("EFAProxy", ("True", "TransportMatches")),
        ("EFAGDA", ("True", "TransportMatches")),
        ("TCP", ("False", "TransportMismatch")),
    ],
)
def test_auto_means_efa_on_nodes_that_have_it(effective: str, expected: tuple[str, str]) -> None:
    made = world("Auto", **gpu_roles())
    tell(made, "trainer", said(effective))
    assert verified(made) == expected
    if effective == "TCP":
        assert "Auto means EFA on nodes that have it; pod demo-trainer" in made.condition("Failed")["message"]


def test_the_mismatch_is_the_cause_and_not_the_pod_that_it_let_fail() -> None:
    """Without a restart left, the failed preflight would end the job too: with a reason that says nothing."""
    spec = gpu_roles()
    spec["trainer"]["failurePolicy"]["maxRestarts"] = 0
    made = world("EFAGDA", **spec)
    tell(made, "trainer", said("TCP"), code=3)
    made.fail_pod(made.live_pods("trainer")[0]["metadata"]["name"], code=3)
    made.act()
    assert verified(made) == ("False", "TransportMismatch")
    assert made.condition("Failed")["reason"] == "TransportMismatch"


def test_unknown_is_no_mismatch_and_no_proof() -> None:
    made = world()
    tell(made, "trainer", said("Unknown", reason="the exchange did not complete: ranks [1] did not join"), code=4)
    assert verified(made) == ("Unknown", "TransportUnknown")
    assert "did not join" in made.condition("TransportVerified")["message"]
    assert made.condition("Failed")["status"] == "False", "its pods failed; the next attempt may prove it"


def test_a_preflight_that_could_not_start() -> None:
    made = world()
    tell(made, "trainer", "python: No module named moerl_kernels", code=1)
    assert verified(made) == ("Unknown", "TransportUnknown")
    assert "exit code 1: python: No module named moerl_kernels" in made.condition("TransportVerified")["message"]


@pytest.mark.parametrize(
    ("requested", "effective", "expected"),
    [
        ("Auto", "Local", ("True", "TransportMatches")),
        ("TCP", "Local", ("Unknown", "NothingToProve")),
        ("TCP", "NVLink", ("Unknown", "NothingToProve")),
    ],
)
def test_a_gang_of_one_pod_proves_nothing_about_a_network(
    requested: str, effective: str, expected: tuple[str, str]
) -> None:
    made = world(requested)
    for role in ("trainer", "rollout"):
        tell(made, role, said(effective, pods=1))
    assert verified(made) == expected
    assert transport(made)["effective"] == effective
    assert made.condition("Failed")["status"] == "False"


def test_a_single_rollout_says_nothing_against_the_trainers_proof() -> None:
    made = world()
    tell(made, "rollout", said("Local", pods=1))
    tell(made, "trainer", said("TCP"))
    assert verified(made) == ("True", "TransportMatches")
    assert transport(made)["effective"] == "TCP"


def test_only_the_latest_attempt_counts() -> None:
    made = world("EFAGDA", "Warn", **gpu_roles())
    tell(made, "trainer", said("TCP"))
    assert verified(made) == ("False", "TransportMismatch")
    old = made.live_pods("trainer")
    made.fail_pod(old[0]["metadata"]["name"])
    made.run(12)
    assert {p["metadata"]["labels"][names.LABEL_ATTEMPT] for p in made.live_pods("trainer")} == {"2"}
    assert verified(made) == ("Unknown", "NotReported")


def test_fake_nodes_prove_nothing_but_a_real_mismatch_decides() -> None:
    made = world()
    for node in made.nodes.values():
        node["metadata"]["labels"][names.LABEL_FAKE_NODE] = "true"
    tell(made, "trainer", said("TCP"))
    assert verified(made) == ("Unknown", "FakeNodes")
    assert transport(made)["effective"] == "Unknown"
    assert made.job is not None
    assert made.job["status"]["display"]["transport"] == "unverified"
    tell(made, "trainer", said("SHM"))
    assert verified(made) == ("False", "TransportMismatch")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"transport": "Warp"}', '{"transport": ["TCP"]}', "[" * 4000, "x" * 5000],
)
def test_last_words_that_are_no_verdict(text: str) -> None:
    assert preflight.parse(text) is None
    made = world()
    tell(made, "trainer", text)
    assert verified(made) == ("Unknown", "NotReported")


def test_any_fields_give_a_status_that_the_schema_takes() -> None:
    rng, strange = random.Random(3), [None, 5, -1, 10**30, True, "é\x00" * 700, [], {}, [1, "a\n" * 900], {"a": 1}]
    made = world("TCP", "Warn")
    for _ in range(60):
        fields = {key: rng.choice(strange) for key in ("pods", "reasons", "fingerprint", "requested", "schema")}
        text = json.dumps({"transport": rng.choice(("TCP", "SHM", "Unknown")), **fields}, ensure_ascii=False)
        tell(made, "trainer", text)
        verified(made)


def test_a_failed_preflight_is_told_in_words() -> None:
    from datetime import UTC, datetime

    from moerl_operator.core import failures

    state = {"exitCode": 3, "reason": "Error", "finishedAt": "2026-11-30T00:00:00Z", "message": said("TCP")}
    status = {"phase": "Failed", "initContainerStatuses": [{"name": "preflight", "state": {"terminated": state}}]}
    found = failures.of_pod({"metadata": {"name": "p"}, "status": status}, datetime(2026, 11, 30, tzinfo=UTC))
    assert found is not None
    assert found.describe() == (
        "container preflight of pod p: Error, exit code 3: TCP was measured; interfaces sent 8.0 MiB; data path ab12"
    )


def test_the_local_node_is_judged_by_measurement_alone() -> None:
    """It stands for any instance type, so no catalogue says what it has."""
    spec = job_spec()
    for part in (spec["trainer"], spec["rollout"]["pools"][0]):
        part["nodes"]["instanceTypes"] = ["local"]
    wish = {"backend": "Auto", "transport": "EFAGDA", "onMismatch": "Fail"}
    made = World(spec | {"communication": {"expertParallel": wish}})
    made.facts["local"] = replace(made.facts["c7i.large"], name="local")  # as the emulator describes it
    made.run(1)
    assert made.condition("Accepted")["status"] == "True"


def test_pods_that_were_made_without_a_preflight_are_left_alone() -> None:
    """An operator that has learnt to render it changes nothing that runs: the revision is of the user's words."""
    made = world()
    made.run(3)
    for (kind, _), child in made.children.items():
        if kind == "Job":
            spec = child["spec"]["template"]["spec"]
            spec["initContainers"] = [c for c in spec["initContainers"] if c["name"] != "preflight"]
    assert made.reconcile().actions == ()


def test_what_ran_before_a_suspend_is_not_judged_by_the_wish_after_it() -> None:
    made = world("EFAGDA", "Warn", **gpu_roles())
    for role in ("trainer", "rollout"):
        tell(made, role, said("EFAGDA"))
    made.report(json.dumps({"attempt": 1, "dataPath": {"transport": {"effective": "EFAGDA"}}}))
    assert verified(made) == ("True", "TransportMatches")
    before = {name: dict(pod) for name, pod in made.pods.items()}
    made.edit(lambda spec: spec.update(suspend=True))
    assert verified(made)[0] == "True"
    wish = {"backend": "Auto", "transport": "TCP", "onMismatch": "Fail"}
    made.edit(lambda spec: spec.update(suspend=False, communication={"expertParallel": wish}))
    made.pods.update(before)  # they take their time to end
    for _ in range(2):
        assert verified(made) == ("Unknown", "NotReported")
        assert made.condition("Failed")["status"] == "False"
    made.run(12)
    assert made.live_pods("trainer")[0]["metadata"]["labels"][names.LABEL_ATTEMPT] == "2"
    assert verified(made) == ("Unknown", "NotReported"), "the report is still the first attempt's"
    made.report(json.dumps({"attempt": 2, "dataPath": {"transport": {"effective": "TCP"}}}))
    assert verified(made) == ("True", "TransportMatches")


def test_the_end_of_a_long_log_is_what_is_told() -> None:
    ended = {"exitCode": 1, "message": "Traceback\n" * 300 + "ImportError: libefa.so.1"}
    status = {"initContainerStatuses": [{"name": "preflight", "state": {"terminated": ended}}]}
    said_then = preflight.of_pod(status, "preflight")[1]
    assert said_then is not None
    assert said_then.words.endswith("ImportError: libefa.so.1")


def test_a_failure_without_a_verdict_is_told_by_the_end_of_its_log() -> None:
    from datetime import UTC, datetime

    from moerl_operator.core import failures

    state = {"exitCode": 1, "reason": "Error", "message": "Traceback\n" * 200 + "ImportError: libefa.so.1"}
    status = {"phase": "Failed", "initContainerStatuses": [{"name": "preflight", "state": {"terminated": state}}]}
    found = failures.of_pod({"metadata": {"name": "p"}, "status": status}, datetime(2026, 11, 30, tzinfo=UTC))
    assert found is not None
    assert found.message.endswith("ImportError: libefa.so.1")
    assert len(found.message) <= 1024


def test_a_preflight_that_was_told_to_stop_takes_no_proof_away() -> None:
    made = world()
    tell(made, "trainer", said("TCP"))
    tell(made, "rollout", "", code=143, only=0)
    assert verified(made) == ("True", "TransportMatches")
