"""An operator that has nothing to do does nothing: not while it idles, and not when it is started anew."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from moerl_local.cluster.handle import Cluster
from support.operator import Audit, OperatorProcess

from .conftest import Jobs

pytestmark = pytest.mark.e2e

IDLE_SECONDS = float(os.environ.get("MOERL_IDLE_SECONDS", "60"))


async def test_a_restart_changes_no_pod_and_writes_nothing(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster
) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    await asyncio.sleep(5)
    before = {pod["metadata"]["uid"] for pod in await jobs.pods()}
    audit = Audit(cluster)

    for how in (signal.SIGTERM, signal.SIGKILL):
        operator.stop(how)
        operator.start()
        await asyncio.sleep(12)

    assert {pod["metadata"]["uid"] for pod in await jobs.pods()} == before
    assert audit.writes() == {}
    assert operator.stop(signal.SIGTERM) == 0
    operator.start()


async def test_an_idle_minute_has_no_write_beyond_the_lease(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster
) -> None:
    await jobs.create()
    await jobs.reaches("Running")
    await asyncio.sleep(5)
    audit = Audit(cluster)

    await asyncio.sleep(IDLE_SECONDS)

    assert audit.writes() == {}
    assert audit.forbidden() == []
    assert operator.get("/healthz") == (200, "ok\n")
    assert operator.get("/readyz") == (200, "ok\n")
