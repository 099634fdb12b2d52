"""Counting writes, rendering the page from raw figures, and the compared objects being the same work."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from moerl_bench import audit, shapes
from moerl_operator.api.job import Job


def _event(verb: str, second: int, *, user: str = "op", stage: str = "ResponseComplete", **ref: str) -> dict:
    return {
        "stage": stage,
        "verb": verb,
        "user": {"username": user},
        "objectRef": ref,
        "requestReceivedTimestamp": f"2026-01-01T00:00:{second:02d}.000000Z",
    }


def test_only_this_users_writes_in_the_interval_count(tmp_path: Path) -> None:
    events = [
        _event("create", 1, resource="jobs", namespace="a"),
        _event("patch", 2, resource="moerljobs", subresource="status", namespace="a"),
        _event("update", 3, resource="leases", namespace="b"),
        _event("get", 3, resource="jobs"),
        _event("create", 3, resource="jobs", user="other"),
        _event("create", 4, resource="jobs", stage="RequestReceived"),
        _event("delete", 30, resource="jobs"),
        {**_event("create", 5, resource="jobs"), "requestURI": "/apis/batch/v1/namespaces/a/jobs?dryRun=All"},
    ]
    log = tmp_path / "audit.log"
    log.write_text("\n".join(json.dumps(event) for event in events) + '\n{"half')
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    counted = audit.writes(audit.read(log), user="op", start=start, end=end)
    assert counted == {"create jobs": 1, "patch moerljobs/status": 1, "update leases": 1, "dry-run jobs": 1}
    assert "update leases" not in audit.without(counted, "leases")
    assert audit.writes(audit.read(log), user="op", start=start, end=end, namespace="b") == {"update leases": 1}


def test_both_sides_ask_for_the_same_pods() -> None:
    job = Job.model_validate({"spec": shapes.moerl_job("x", "bench")["spec"]}).spec
    ours = (job.trainer.nodes.count or 0) + sum(pool.node_count for pool in job.rollout.pools)
    jobs = shapes.job_set("x", "bench")["spec"]["replicatedJobs"]
    theirs = sum(one["replicas"] * one["template"]["spec"]["completions"] for one in jobs)
    assert ours == theirs == shapes.GANG_PODS
    assert [nodes.provisioner for nodes in job.role_nodes().values()] == ["Existing"] * 5


def test_a_jobset_of_the_same_pods_takes_their_templates_word_for_word() -> None:
    """But for what ties a pod to its owner: the operator's labels, the Job controller's, the ServiceAccount."""

    def job(role: str, **labels: str) -> dict:
        containers = [{"name": "main", "env": [{"name": "A"}]}]
        meta = {"labels": {"moerl.dev/role": role, "job-name": "j"}}
        pod = {"metadata": meta, "spec": {"serviceAccountName": "j", "containers": containers}}
        spec = {"completionMode": "Indexed", "completions": 4, "parallelism": 4, "backoffLimit": 0, "template": pod}
        return {"metadata": {"labels": {"moerl.dev/role": role, **labels}}, "spec": spec}

    jobs = [job("trainer"), job("rollout", **{"moerl.dev/pool": "a"}), job("rollout", **{"moerl.dev/pool": "a"})]
    made = shapes.job_set_like("x", "bench", jobs)["spec"]["replicatedJobs"]
    assert [(one["name"], one["replicas"]) for one in made] == [("a", 2), ("trainer", 1)]
    template = made[0]["template"]["spec"]["template"]
    assert template["spec"]["containers"] == jobs[1]["spec"]["template"]["spec"]["containers"]
    assert template["spec"]["serviceAccountName"] == "default"
    assert list(template["metadata"]["labels"].values()) == ["rollout"]
    assert not any(key.startswith("moerl.dev/") for key in template["metadata"]["labels"])


def test_nodes_carry_what_the_pods_ask_for() -> None:
    gpu = [node for node in shapes.nodes() if node["metadata"]["labels"][shapes.SELECTOR] == "gpu"]
    assert len(gpu) == shapes.GANG_PODS
    assert gpu[0]["status"]["allocatable"]["nvidia.com/gpu"] == "8"
