"""An operator that has nothing to do does nothing: not while it idles, and not when it is started anew."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.kube.api import Kinds
from support.operator import Audit, OperatorProcess, running_operator
from support.waiting import until

from .conftest import Jobs

pytestmark = pytest.mark.e2e

IDLE_SECONDS = float(os.environ.get("MOERL_IDLE_SECONDS", "60"))
# Python imports it at its start, before the program.
ANOTHER_BUILDER = """
from moerl_operator.manifests import environment

_identity = environment.identity
environment.identity = lambda role: [*_identity(role), {"name": "OF_ANOTHER_VERSION", "value": "1"}]
"""


async def test_a_restart_changes_no_pod_and_writes_nothing(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster
) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    await asyncio.sleep(5)
    before = await uids(jobs)
    audit = Audit(cluster)

    for how in (signal.SIGTERM, signal.SIGKILL):
        operator.stop(how)
        operator.start()
        await asyncio.sleep(12)

    assert await uids(jobs) == before
    assert audit.writes() == {}
    assert "list moerljobs" in audit.verbs(), "the log holds nothing of the operator's"
    assert operator.stop(signal.SIGTERM) == 0
    operator.start()


async def test_another_version_that_renders_something_new_leaves_what_runs_alone(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster, tmp_path: Path
) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    await asyncio.sleep(5)
    before = await uids(jobs)
    assert before
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_BUILDER)
    audit = Audit(cluster)

    operator.stop()
    try:
        with running_operator(cluster, tmp_path, PYTHONPATH=str(tmp_path)):
            await asyncio.sleep(12)
            assert await uids(jobs) == before
            assert audit.writes() == {}

            # The control: it does render something new, for a job that it starts.
            await jobs.create("later")
            await jobs.reaches("Running", "later")
            for role in ("trainer", "rollout", "environment"):
                assert await renders_anew(jobs, "later", role)
                assert not await renders_anew(jobs, "tiny", role)
            assert await uids(jobs, job="tiny") == before
    finally:
        operator.start()


async def test_an_idle_minute_has_no_write_beyond_the_lease(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster
) -> None:
    await jobs.create("finished")
    await jobs.create()
    await jobs.reaches("Running", "finished")
    await jobs.reaches("Running")
    await jobs.finish("finished")
    await asyncio.sleep(5)
    audit = Audit(cluster)

    await asyncio.sleep(IDLE_SECONDS)

    assert audit.writes() == {}
    assert audit.verbs()["update leases"] + audit.verbs()["patch leases"] > 0, "the log holds nothing of the operator's"
    assert audit.forbidden() == []
    assert (await jobs.state("finished"), await jobs.state()) == ("Complete", "Running")
    assert operator.get("/healthz") == (200, "ok\n")
    assert operator.get("/readyz") == (200, "ok\n")
    # The control: the same log shows a write when there is something to do.
    await jobs.delete()
    await until("the job is gone", jobs.is_gone, seconds=120)
    assert audit.writes()["patch moerljobs"] > 0


async def uids(jobs: Jobs, **labels: str) -> set[str]:
    """UIDs of the pods of jobs."""
    return {pod["metadata"]["uid"] for pod in await jobs.pods(**labels)}


async def renders_anew(jobs: Jobs, job: str, role: str) -> bool:
    """Whether the pods of a role, and what makes them, have the other version's variable; all or none must."""
    made: list[dict[str, Any]] = [pod["spec"] for pod in await jobs.pods(job=job, role=role)]
    for kind in (Kinds.JOB, Kinds.DEPLOYMENT):
        selector = f"moerl.dev/job={job},moerl.dev/role={role}"
        owners = await jobs.kube.list(kind, jobs.namespace, label_selector=selector)
        made += [owner["spec"]["template"]["spec"] for owner in owners]
    found = {any(item["name"] == "OF_ANOTHER_VERSION" for item in spec["containers"][0]["env"]) for spec in made}
    assert len(found) == 1, f"{len(made)} pods and their owners differ"
    return found.pop()
