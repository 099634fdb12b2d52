"""One round against a real API server: what is written, in which order, and what a failure leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.control.ports import AwsFailure
from moerl_operator.core.world import (
    ApplyChild,
    AwsError,
    AwsObservation,
    CreateChild,
    DeleteChild,
    DeleteJob,
    DeleteNodeGroup,
    PatchChild,
    Plan,
    PlannedEvent,
    SetFinalizer,
    Snapshot,
)
from moerl_operator.kube.api import Kinds, KubeError, Obj
from support.apiserver import ApiServer

from .conftest import Loop, child, manifest

pytestmark = pytest.mark.e2e


def status(**more: Any) -> Obj:
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Valid",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    return {"observedGeneration": 1, "conditions": [condition], "display": {"state": "Running"}, **more}


def always(*actions: Any, **plan: Any) -> Callable[[Snapshot], Plan]:
    return lambda snapshot: Plan(actions=actions, **plan)


async def test_the_second_round_writes_nothing(loop: Loop) -> None:
    loop.plan = always(status=status())
    await loop.round()
    first = await loop.job()
    await loop.round()
    await loop.reconciler.reconcile((loop.namespace, "j"))

    assert (await loop.job())["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert first["status"]["display"]["state"] == "Running"


async def test_what_was_just_made_is_in_the_next_snapshot_without_any_watch(loop: Loop) -> None:
    loop.plan = lambda snapshot: Plan(
        actions=() if snapshot.config_maps else (CreateChild(child(snapshot.job, data={"a": "b"})),)
    )
    await loop.round()
    await loop.reconciler.reconcile((loop.namespace, "j"))

    assert [obj["metadata"]["name"] for obj in loop.snapshots[-1].config_maps] == ["j-config"]


async def test_a_deleted_child_is_seen_as_terminating_at_once(loop: Loop) -> None:
    job = await loop.job()
    made = await loop.kube.create(Kinds.CONFIG_MAP, child(job))
    loop.plan = always(DeleteChild("v1", "ConfigMap", "j-config", made["metadata"]["uid"]))
    await loop.round()
    loop.plan = always()
    await loop.reconciler.reconcile((loop.namespace, "j"))

    (seen,) = loop.snapshots[-1].config_maps
    assert seen["metadata"]["deletionTimestamp"]
    assert await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-config") is None


async def test_creating_what_exists_already_is_success(loop: Loop) -> None:
    job = await loop.job()
    await loop.kube.create(Kinds.CONFIG_MAP, child(job))
    loop.plan = always(CreateChild(child(job)), CreateChild(child(job, name="j-report")))
    assert await loop.reconciler.reconcile((loop.namespace, "j")) is None  # nothing known: the cache is empty
    await loop.round()
    assert await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-report") is not None


@pytest.mark.parametrize("action", [CreateChild, ApplyChild])
async def test_what_belongs_to_somebody_else_is_left_alone_and_named(loop: Loop, action: Any) -> None:
    foreign = {"metadata": {"name": "j-config", "namespace": loop.namespace}, "data": {"whose": "theirs"}}
    await loop.kube.create(Kinds.CONFIG_MAP, foreign)
    job = await loop.job()
    loop.plan = always(action(child(job, data={"whose": "ours"})), status=status())

    assert await loop.round()
    await loop.round()

    found = await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-config")
    assert found is not None
    assert found["data"] == {"whose": "theirs"}
    assert "ConfigMap/j-config" in loop.snapshots[-1].foreign
    degraded = next(c for c in (await loop.job())["status"]["conditions"] if c["type"] == "Degraded")
    assert degraded["status"] == "True"
    assert "j-config" in degraded["message"]


async def test_children_of_a_dead_namesake_are_foreign(loop: Loop) -> None:
    old = await loop.job()
    await loop.kube.create(Kinds.CONFIG_MAP, child(old))
    await loop.kube.delete(Kinds.MOERL_JOB, loop.namespace, "j")
    await loop.kube.create(Kinds.MOERL_JOB, manifest(loop.namespace))

    await loop.round()

    assert loop.snapshots[-1].config_maps == ()
    assert loop.snapshots[-1].foreign == ("ConfigMap/j-config",)


async def test_a_refused_child_is_told_and_not_asked_for_again_at_every_event(
    loop: Loop, bare_server: ApiServer
) -> None:
    job = await loop.job()
    loop.plan = always(CreateChild(child(job, dta={})), status=status())
    after = await loop.round()
    for _ in range(5):
        await loop.round()

    assert after is not None
    assert after >= 60
    degraded = next(c for c in (await loop.job())["status"]["conditions"] if c["type"] == "Degraded")
    assert "dta" in degraded["message"]
    line = 'moerl_actions_total{action="CreateChild",result="error"}'
    assert line in loop.metrics.render().decode()
    asked = bare_server.audit_log.read_text().count(f"/api/v1/namespaces/{loop.namespace}/configmaps?")
    assert asked < 20  # lists of six rounds, and one create


async def test_the_servers_opinion_of_the_children_is_asked_once_per_generation(loop: Loop) -> None:
    def plan(snapshot: Snapshot) -> Plan:
        good, bad = child(snapshot.job), child(snapshot.job, name="bad", dta={})
        if not snapshot.dry_run_done and snapshot.dry_run_error is None:
            return Plan(dry_run=(good, bad))
        return Plan(status=status(finalPolicy=str(snapshot.dry_run_error)))

    loop.plan = plan
    await loop.round()

    assert "dta" in (await loop.job())["status"]["finalPolicy"]
    assert await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-config") is None
    before = len(loop.snapshots)
    await loop.round()
    assert len(loop.snapshots) == before + 1


async def test_the_finalizer_comes_and_goes_and_spares_those_of_others(loop: Loop) -> None:
    others = [{"op": "add", "path": "/metadata/finalizers", "value": ["example.org/theirs"]}]
    await loop.kube.patch(Kinds.MOERL_JOB, loop.namespace, "j", others)
    loop.plan = always(SetFinalizer(True))
    for _ in range(2):
        await loop.round()
    assert (await loop.job())["metadata"]["finalizers"] == ["example.org/theirs", names.FINALIZER]

    loop.plan = always(SetFinalizer(False))
    for _ in range(2):
        await loop.round()
    assert (await loop.job())["metadata"]["finalizers"] == ["example.org/theirs"]


async def test_a_finalizer_list_that_changed_meanwhile_is_looked_at_again(loop: Loop) -> None:
    loop.plan = always(SetFinalizer(True))
    await loop.intake.resync()
    await loop.kube.patch(Kinds.MOERL_JOB, loop.namespace, "j", {"metadata": {"finalizers": ["example.org/x"]}})

    soon = await loop.reconciler.reconcile((loop.namespace, "j"))  # from the stale cache: refused, not overwritten
    assert soon is not None
    assert soon <= 2
    assert (await loop.job())["metadata"]["finalizers"] == ["example.org/x"]
    await loop.round()
    assert (await loop.job())["metadata"]["finalizers"] == ["example.org/x", names.FINALIZER]


async def test_the_buffers_password_is_made_here_and_never_read_back(loop: Loop) -> None:
    job = await loop.job()
    secret = child(job, "Secret", names.buffer_secret("j"), type="Opaque")
    loop.plan = always(CreateChild(secret, generate_password=True))
    await loop.round()
    made = await loop.kube.get(Kinds.SECRET, loop.namespace, "j-buffer")
    assert made is not None
    await loop.round()

    assert (await loop.kube.get(Kinds.SECRET, loop.namespace, "j-buffer")) == made
    (seen,) = loop.snapshots[-1].secrets
    assert "data" not in seen


async def test_progress_is_written_at_most_every_fifteen_seconds_and_a_change_of_state_at_once(loop: Loop) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    loop.clock = lambda: now
    loop.plan = always(status=status(iteration=1))
    await loop.round()
    now += timedelta(seconds=5)
    loop.plan = always(status=status(iteration=2))

    assert await loop.round() == pytest.approx(10)
    assert (await loop.job())["status"]["iteration"] == 1
    loop.plan = always(status=status(iteration=3, display={"state": "Degraded"}))
    await loop.round()
    assert (await loop.job())["status"]["iteration"] == 3
    now += timedelta(seconds=16)
    loop.plan = always(status=status(iteration=4, display={"state": "Degraded"}))
    await loop.round()
    assert (await loop.job())["status"]["iteration"] == 4


async def test_events_follow_a_written_status_and_are_not_repeated(loop: Loop) -> None:
    loop.plan = always(status=status(), events=(PlannedEvent("Normal", "Ready", "all roles are ready"),))
    for _ in range(3):
        await loop.round()

    (event,) = await loop.kube.list(Kinds.EVENT, loop.namespace)
    assert (event["reason"], event["note"], event["regarding"]["name"]) == ("Ready", "all roles are ready", "j")

    broken = status(conditions=[{"type": "Accepted"}])  # the server refuses it
    loop.plan = always(status=broken, events=(PlannedEvent("Normal", "Never", "x"),))
    with pytest.raises(KubeError):
        await loop.round()
    assert len(await loop.kube.list(Kinds.EVENT, loop.namespace)) == 1


async def test_a_failed_action_ends_the_round_but_not_the_telling(loop: Loop) -> None:
    refusal = AwsError("eks:DeleteNodegroup", "ServerException", "later", "Retry")
    loop.aws.refusals = [refusal]
    job = await loop.job()
    loop.plan = always(DeleteNodeGroup("g"), CreateChild(child(job)), status=status())

    soon = await loop.round()

    assert soon is not None
    assert soon <= 2
    assert await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-config") is None
    assert (await loop.job())["status"]["display"]["state"] == "Running"
    await loop.round()
    assert await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-config") is not None


async def test_an_aws_that_does_not_answer_is_told_and_backed_off(loop: Loop) -> None:
    await loop.kube.patch(Kinds.MOERL_JOB, loop.namespace, "j", {"metadata": {"finalizers": [names.FINALIZER]}})
    loop.aws.observation = AwsObservation(error=AwsError("eks:ListNodegroups", "X", "no", "Retry"))
    loop.plan = lambda snapshot: Plan(status=status(finalPolicy=str(snapshot.aws.error and snapshot.aws.error.code)))

    with pytest.raises(AwsFailure):
        await loop.round()

    assert (await loop.job())["status"]["finalPolicy"] == "X"


async def test_an_observation_that_fails_does_nothing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    await loop.intake.resync()

    async def down(*_: Any, **__: Any) -> None:
        raise KubeError(503, "Unavailable", "down")

    monkeypatch.setattr(type(loop.kube), "get", down)
    loop.plan = always(DeleteJob(), status=status())
    with pytest.raises(KubeError):
        await loop.reconciler.reconcile((loop.namespace, "j"))
    monkeypatch.undo()

    assert loop.snapshots == []
    assert "status" not in await loop.job()


async def test_a_job_can_delete_itself_but_not_its_namesake(loop: Loop) -> None:
    await loop.intake.resync()
    await loop.kube.delete(Kinds.MOERL_JOB, loop.namespace, "j")
    young = await loop.kube.create(Kinds.MOERL_JOB, manifest(loop.namespace))
    loop.plan = always(DeleteJob(), status=status())

    await loop.reconciler.reconcile((loop.namespace, "j"))  # of the old one, from the cache

    assert (await loop.job())["metadata"]["uid"] == young["metadata"]["uid"]
    assert "status" not in await loop.job()
    await loop.round()
    assert await loop.kube.get(Kinds.MOERL_JOB, loop.namespace, "j") is None


async def test_a_namespace_on_its_way_out_is_no_trouble(loop: Loop) -> None:
    job = await loop.job()
    await loop.kube.delete(Kinds.NAMESPACE, None, loop.namespace)
    loop.plan = always(CreateChild(child(job)), status=status())
    assert await loop.round() == pytest.approx(30)


async def test_a_patch_of_a_child_that_is_gone_is_no_trouble(loop: Loop) -> None:
    loop.plan = always(PatchChild("batch/v1", "Job", "gone", {"spec": {"suspend": True}}))
    assert await loop.round() is None


async def test_a_job_that_is_gone_leaves_no_gauges(loop: Loop) -> None:
    loop.plan = always(status=status(iteration=7))
    await loop.round()
    assert f'namespace="{loop.namespace}"' in loop.metrics.render().decode()
    await loop.kube.delete(Kinds.MOERL_JOB, loop.namespace, "j")
    await loop.round()
    assert f'namespace="{loop.namespace}"' not in loop.metrics.render().decode()


async def test_a_dry_run_is_as_good_as_a_look_at_the_name(loop: Loop, bare_server: ApiServer) -> None:
    """A name that it found free is not asked for again; one that it found taken is, and stays its owner's."""
    taken = {"metadata": {"name": "j-taken", "namespace": loop.namespace}, "data": {"whose": "theirs"}}
    await loop.kube.create(Kinds.CONFIG_MAP, taken)

    def plan(snapshot: Snapshot) -> Plan:
        free, other = child(snapshot.job, name="j-free"), child(snapshot.job, name="j-taken", data={"whose": "ours"})
        if not snapshot.dry_run_done:
            return Plan(dry_run=(free, other))
        return Plan(actions=(ApplyChild(free), ApplyChild(other)), status=status())

    loop.plan = plan
    await loop.round()

    assert await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-free") is not None
    found = await loop.kube.get(Kinds.CONFIG_MAP, loop.namespace, "j-taken")
    assert found is not None
    assert found["data"] == {"whose": "theirs"}
    events = [json.loads(line) for line in bare_server.audit_log.read_text().splitlines()]
    got = [event.get("objectRef") or {} for event in events if event["verb"] == "get"]
    looked = [
        ref["name"] for ref in got if (ref.get("namespace"), ref.get("resource")) == (loop.namespace, "configmaps")
    ]
    assert looked.count("j-free") == 1  # this test's own
    assert looked.count("j-taken") == 2
