"""The operator's rights: as reviewed, least, and enough to grant what it grants."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from moerl_operator.api.job import JobSpec
from moerl_operator.manifests.context import JobContext
from moerl_operator.manifests.support import role as report_role
from support.helm import CHART, render

Rules = list[dict[str, Any]]

# Reviewed by hand: (group, resource) -> verbs, in a namespace whose jobs are run.
WORKLOAD = "create delete get list patch watch"
SUPPORT = "create get list patch watch"  # goes with the job, by its owner reference
NAMESPACE_RIGHTS = {
    ("moerl.dev", "moerljobs"): "delete get list patch watch",
    ("moerl.dev", "moerljobs/status"): "patch",
    ("moerl.dev", "moerljobs/finalizers"): "update",  # owner references that block deletion
    ("", "pods"): "list watch",
    ("", "services"): SUPPORT,
    ("", "configmaps"): SUPPORT,
    ("", "serviceaccounts"): "create get list watch",
    ("", "secrets"): "create get",  # never listed: the operator knows its Secrets by name
    ("batch", "jobs"): WORKLOAD,
    ("apps", "deployments"): WORKLOAD,
    ("apps", "statefulsets"): WORKLOAD,
    ("networking.k8s.io", "networkpolicies"): SUPPORT,
    ("policy", "poddisruptionbudgets"): SUPPORT,
    ("rbac.authorization.k8s.io", "roles"): SUPPORT,
    ("rbac.authorization.k8s.io", "rolebindings"): SUPPORT,
    ("events.k8s.io", "events"): "create",
}
CLUSTER_RIGHTS = {
    ("", "nodes"): "get list watch",
    ("moerl.dev", "moerlnodeclasses"): "get list watch",
}
LEADER_RIGHTS = {("coordination.k8s.io", "leases"): "create get patch"}


def table(rules: Rules) -> dict[tuple[str, str], str]:
    """(group, resource) -> sorted verbs."""
    out: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                out.setdefault((group, resource), set()).update(rule["verbs"])
    return {key: " ".join(sorted(verbs)) for key, verbs in out.items()}


def named(objects: Rules, name: str) -> dict[str, Any]:
    return next(each for each in objects if each["metadata"]["name"] == name)


def test_cluster_mode() -> None:
    rendered = render()
    role = named(rendered.all("ClusterRole"), "moerl-operator")
    assert table(role["rules"]) == NAMESPACE_RIGHTS | CLUSTER_RIGHTS
    assert [each["metadata"]["name"] for each in rendered.all("Role")] == ["moerl-operator-leader"]


def test_namespace_mode() -> None:
    rendered = render(values=["namespaced"])
    assert table(named(rendered.all("ClusterRole"), "moerl-operator")["rules"]) == CLUSTER_RIGHTS
    roles = {each["metadata"]["namespace"]: each for each in rendered.all("Role")}
    assert set(roles) == {"team-a", "team-b", "moerl-system"}
    assert table(roles["team-a"]["rules"]) == table(roles["team-b"]["rules"]) == NAMESPACE_RIGHTS
    bound = {each["metadata"]["namespace"]: each["subjects"] for each in rendered.all("RoleBinding")}
    account = {"kind": "ServiceAccount", "name": "moerl-operator", "namespace": "moerl-system"}
    assert bound == {namespace: [account] for namespace in roles}


def test_leader_election_is_limited_to_its_namespace() -> None:
    role = named(render().all("Role"), "moerl-operator-leader")
    assert role["metadata"]["namespace"] == "moerl-system"
    assert table(role["rules"]) == LEADER_RIGHTS


@pytest.mark.parametrize("values", ["cluster", "namespaced"])
def test_nothing_is_granted_by_wildcard(values: str) -> None:
    rendered = render(values=[values])
    for role in rendered.all("ClusterRole") + rendered.all("Role"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_it_holds_every_verb_that_it_grants() -> None:
    """The API server refuses a Role with more rights than its creator has (the e2e tests do it for real)."""
    spec = yaml.safe_load((CHART.parents[1] / "examples" / "reverse.yaml").read_text())["spec"]
    job = JobContext(
        name="j", namespace="n", uid="u", spec=JobSpec.model_validate(spec), raw_spec=spec, service_account="j"
    )
    for (group, resource), verbs in table(report_role(job)["rules"]).items():
        assert set(verbs.split()) <= set(NAMESPACE_RIGHTS[group, resource].split())


def test_people_may_edit_jobs_where_they_may_edit() -> None:
    rendered = render().all("ClusterRole")
    edit = named(rendered, "moerl-operator-edit")
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {resource for _, resource in table(edit["rules"])} == {"moerljobs"}
    assert [r["metadata"]["name"] for r in render("rbac.aggregate=false").all("ClusterRole")] == ["moerl-operator"]
