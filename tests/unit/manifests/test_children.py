"""The objects around the pods, and the rules of the Jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from moerl_operator.api import names
from moerl_operator.core import workloads
from moerl_operator.core.topology import arrange
from moerl_operator.manifests import gangs, revision, servers, support
from moerl_operator.manifests.context import role_selector
from support.rendered import SPECS, context, gpu_spec, native_spec, view
from support.simulated_world import UID, World, job_spec

Obj = dict[str, Any]


def children(spec: Obj) -> list[Obj]:
    world = World(spec)
    seen = view(spec)
    assert world.job is not None
    return list(workloads.dry_run(seen, arrange(seen, suspended=False)))


@pytest.mark.parametrize("name", SPECS)
def test_every_child_is_owned_labelled_and_has_a_revision(name: str) -> None:
    for obj in children(SPECS[name]):
        meta = obj["metadata"]
        owner = meta["ownerReferences"][0]
        assert (owner["uid"], owner["kind"], owner["controller"]) == (UID, "MoERLJob", True)
        assert meta["labels"][names.LABEL_JOB_UID] == UID
        assert meta["labels"][names.LABEL_MANAGED_BY] == names.MANAGED_BY
        assert meta["namespace"] == "ml"
        if obj["kind"] != "ServiceAccount":
            assert meta["annotations"][names.ANNOTATION_REVISION]
        json.dumps(obj)


def test_job_rules() -> None:
    job = gangs.attempt(replace(context(gpu_spec(), "spot"), replica=17, attempt=3, restarts=2))
    assert job["metadata"]["name"] == "demo-rollout-spot-17-a3"
    assert job["metadata"]["annotations"][names.ANNOTATION_RESTARTS] == "2"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["backoffLimit"] == 0
    assert spec["podReplacementPolicy"] == "Failed"
    rules = spec["podFailurePolicy"]["rules"]
    assert [r["action"] for r in rules] == ["FailJob", "FailJob"]
    assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert rules[1]["onExitCodes"] == {"operator": "NotIn", "values": [0]}
    assert "ttlSecondsAfterFinished" not in spec
    assert "suspend" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_the_longest_names_fit_a_dns_label() -> None:
    spec = job_spec()
    spec["rollout"]["pools"][0]["name"] = "p" * names.MAX_POOL_NAME
    world = World(spec)
    assert world.job is not None
    made = replace(context(spec, "p" * names.MAX_POOL_NAME), replica=9999, attempt=9999)
    made = replace(made, job=replace(made.job, name="j" * names.MAX_JOB_NAME))
    assert len(gangs.attempt_name(made) + "-999") <= 63


def test_buffer_is_never_rolled_and_keeps_no_volume_behind() -> None:
    made = servers.buffer(context(gpu_spec(), "buffer"), 1)
    assert made["spec"]["updateStrategy"] == {"type": "OnDelete"}
    claim = made["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"
    assert claim["spec"]["storageClassName"] == "gp3"
    assert made["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert "volumeClaimTemplates" not in servers.buffer(context(native_spec(), "buffer"), 1)["spec"]


@pytest.mark.parametrize(
    ("role", "before_ready"),
    [("trainer", True), ("rollout", True), ("buffer", True), ("reward", False), ("environment", False)],
)
def test_services_are_headless(role: str, before_ready: bool) -> None:
    made = servers.service(view(native_spec()).job_context, role)
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["publishNotReadyAddresses"] is before_ready
    assert made["spec"]["selector"] == {names.LABEL_JOB_UID: UID, names.LABEL_ROLE: role}


def test_selectors_find_the_pods_of_their_role() -> None:
    for key in ("trainer", "spot", "environment", "buffer"):
        made = context(native_spec(), key)
        assert role_selector(made.job, made.role).items() <= made.labels.items()


def test_budgets_have_integers_and_only_where_a_lost_pod_is_a_lost_run() -> None:
    budgets = [o for o in children(native_spec()) if o["kind"] == "PodDisruptionBudget"]
    assert {o["metadata"]["name"]: o["spec"]["minAvailable"] for o in budgets} == {"demo-trainer": 2, "demo-buffer": 1}
    assert all("maxUnavailable" not in o["spec"] for o in budgets)


def test_pods_may_only_patch_their_report() -> None:
    job = view(native_spec()).job_context
    assert support.role(job)["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["demo-report"], "verbs": ["get", "patch"]}
    ]
    assert support.role_binding(job)["subjects"] == [{"kind": "ServiceAccount", "name": "demo", "namespace": "ml"}]


def test_strangers_reach_only_metrics() -> None:
    spec = support.network_policy(view(native_spec()).job_context)["spec"]
    assert spec["policyTypes"] == ["Ingress"], "DNS and S3 stay open"
    assert spec["ingress"] == [
        {"from": [{"podSelector": {"matchLabels": {names.LABEL_JOB_UID: UID}}}]},
        {"ports": [{"protocol": "TCP", "port": 8081}]},
    ]


def test_configuration_is_the_job_as_the_user_wrote_it() -> None:
    seen = view(native_spec())
    content = json.loads(support.config(seen.job_context)["data"]["job.json"])
    assert content["metadata"] == {"name": "demo", "namespace": "ml", "uid": UID}
    assert content["spec"] == native_spec()


def test_the_secret_holds_nothing_yet() -> None:
    made = support.secret(view(native_spec()).job_context)
    assert "data" not in made
    assert "stringData" not in made


def test_a_named_account_belongs_to_no_job() -> None:
    spec = native_spec() | {"serviceAccountName": "shared"}
    made = support.service_account(view(spec).job_context)
    assert made["metadata"]["name"] == "shared"
    assert "ownerReferences" not in made["metadata"]
    assert names.LABEL_JOB_UID not in made["metadata"]["labels"]


def test_revision_is_of_the_users_words_only() -> None:
    one, two = view(native_spec()).spec, view(native_spec()).spec
    assert revision.pods(one, "trainer") == revision.pods(two, "trainer")
    explicit = native_spec()
    explicit["algorithm"]["temperature"] = "1.0"  # the default, written out as the server does
    assert revision.pods(view(explicit).spec, "trainer") == revision.pods(one, "trainer")
    other = native_spec()
    other["algorithm"]["temperature"] = "0.9"
    assert revision.pods(view(other).spec, "trainer") != revision.pods(one, "trainer")


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["rollout"]["pools"][0].update(replicas=9),
        lambda s: s["environment"].update(replicas=9),
        lambda s: s["trainer"]["nodes"].update(onFinish="Retain"),
        lambda s: s.update(runPolicy={"activeDeadlineSeconds": 5}),
        lambda s: s.update(suspend=True),
    ],
)
def test_what_may_change_at_any_time_is_not_in_a_revision(change: Any) -> None:
    spec = native_spec()
    before = view(spec)
    changed = native_spec()
    change(changed)
    after = view(changed)
    for part in before.parts:
        other = after.part(part.key)
        assert other is not None
        assert before.pods_revision(part) == after.pods_revision(other)
        assert before.nodes_revision(part) == after.nodes_revision(other)
