"""What a user and an administrator see when something is wrong, and that it mends itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.kube.api import Kinds
from support.emulator import Emulator
from support.operator import Audit, OperatorProcess, running_operator
from support.waiting import until

from .conftest import Jobs

pytestmark = pytest.mark.e2e


async def refused(jobs: Jobs) -> dict[str, Any]:
    async def probe() -> Any:
        found = await jobs.condition("Accepted")
        return found if found.get("status") == "False" else None

    found: dict[str, Any] = await until("Accepted is False", probe, seconds=60)
    return found


async def test_wrong_credentials_are_a_condition_with_the_code_and_no_storm(
    jobs: Jobs, aws: Emulator, operator: OperatorProcess
) -> None:
    aws.fault("credentials")
    start = len(operator.log())
    await jobs.create()

    async def told() -> bool:
        found = await jobs.condition("NodesReady")
        return found.get("status") == "False" and "UnrecognizedClientException" in str(found)

    await until("NodesReady tells the AWS code", told, seconds=60)
    await asyncio.sleep(15)
    said = operator.log()[start:]
    assert "Traceback" not in said
    assert said.count("UnrecognizedClientException") <= 10, said

    aws.clear_faults()
    await jobs.reaches("Running")


async def test_an_aws_that_cannot_be_reached_is_a_condition_and_no_storm(
    jobs: Jobs, operator: OperatorProcess, cluster: Cluster, tmp_path: Path
) -> None:
    """A cut network, a wrong endpoint: the job is accepted and waits; when AWS is back it runs."""
    operator.stop()
    try:
        with running_operator(cluster, tmp_path, AWS_ENDPOINT_URL="http://127.0.0.1:9") as cut:
            await jobs.create()

            async def told() -> bool:
                found = await jobs.condition("NodesReady")
                return found.get("status") == "False" and "127.0.0.1:9" in found.get("message", "")

            await until("NodesReady tells of the connection", told, seconds=90)
            await asyncio.sleep(10)
            assert "Traceback" not in cut.log()
            assert cut.log().count("127.0.0.1:9") <= 20, cut.log()
            assert cut.get("/healthz")[0] == 200
    finally:
        operator.start()
    await jobs.reaches("Running")


async def test_a_typo_inside_a_template_is_found_before_anything_is_made_and_can_be_mended(
    jobs: Jobs, aws: Emulator, cluster: Cluster
) -> None:
    audit = Audit(cluster)
    await jobs.create(change=lambda spec: spec["trainer"]["template"]["spec"]["containers"][0].update(comand=["x"]))

    found = await refused(jobs)

    assert "comand" in found["message"]
    made = [write for write in audit.writes() if not write.endswith(("moerljobs", "events"))]
    assert made == []
    good = jobs.manifest()["spec"]["trainer"]["template"]
    mend = [{"op": "replace", "path": "/spec/trainer/template", "value": good}]
    await jobs.kube.patch(Kinds.MOERL_JOB, jobs.namespace, "tiny", mend)
    await jobs.reaches("Running")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec["trainer"]["nodes"].update(instanceTypes=["p99.metal"]), "p99.metal"),
        (lambda spec: spec["trainer"]["nodes"].update(nodeClassName="absent"), "absent"),
        (
            lambda spec: (
                spec["trainer"]["nodes"].update(instanceTypes=["c7i.16xlarge"]),
                spec.update(communication={"expertParallel": {"backend": "DeepEP", "transport": "EFAProxy"}}),
            ),
            "EFA",
        ),
    ],
)
async def test_what_cannot_be_had_is_refused_with_its_name(jobs: Jobs, change: Any, words: str) -> None:
    await jobs.create(change=change)
    assert words in (await refused(jobs))["message"]
    assert await jobs.pods() == []


async def test_a_full_quota_is_waited_for(jobs: Jobs, aws: Emulator) -> None:
    aws.fault("quota", name="nodegroups", value=0)
    await jobs.create()

    async def waits() -> bool:
        return (await jobs.condition("NodesReady")).get("reason") == "NodeGroupQuota"

    await until("NodesReady says NodeGroupQuota", waits, seconds=60)
    aws.clear_faults()
    await jobs.reaches("Running")


async def test_an_aws_that_fails_now_and_then_only_costs_time(jobs: Jobs, aws: Emulator) -> None:
    aws.fault("server-error", times=6)
    aws.fault("lost-answer", action="CreateNodegroup", times=2)
    aws.fault("throttle", service="autoscaling", times=5)
    await jobs.create()
    running = await jobs.reaches("Running")
    assert len(running["status"]["nodeGroups"]) == 4
