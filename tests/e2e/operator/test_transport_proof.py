"""The preflight of real pods on the real node: what it measures becomes the job's condition, and a strict job's end.

Two trainer pods exchange bytes over the node's pod network, which is TCP whatever the job asked for. They and the
rollout are on the real node, scoring and buffer on fake ones, whose nodes carry no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from support.waiting import stays, until

from .conftest import NODE_CLASS, Jobs, Obj

pytestmark = [pytest.mark.e2e, pytest.mark.node]

PAUSE = "moerl.dev/pause:local"
REAL_CLASS = "e2e-proof"
CHECKOUT = "/opt/moerl"
# The machine's own programs, mounted into an image that has none.
MOUNTS = {"/usr": "/usr", "/bin": "/usr/bin", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
SLEEP = ["/usr/bin/python3", "-c", "import time; time.sleep(3600)"]


@pytest.fixture
def ask(installed: Cluster, node_cluster: Cluster, root: Path) -> Callable[[str, str], Callable[[Obj], None]]:
    """Turns a job's spec into one of the native runtime whose trainer gang asks for a transport."""
    found = json.loads(installed.kubectl("get", "moerlnodeclass", NODE_CLASS, "-o", "json"))
    environment = {"PATH": f"{CHECKOUT}/.venv/bin:/usr/bin", "PYTHONPATH": f"{CHECKOUT}/kernels"}
    defaults = {"image": PAUSE, "env": [{"name": name, "value": value} for name, value in environment.items()]}
    manifest = {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": {"name": REAL_CLASS},
        "spec": {**found["spec"], "permittedHostPaths": sorted({*MOUNTS.values(), str(root)}), "defaults": defaults},
    }
    node_cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    sources = {**MOUNTS, CHECKOUT: str(root)}
    volumes = [{"name": path.strip("/").replace("/", "-"), "hostPath": {"path": at}} for path, at in sources.items()]
    mounts = [{"name": path.strip("/").replace("/", "-"), "mountPath": path, "readOnly": True} for path in sources]

    def template(sidecar: str) -> Obj:
        """The operator fills in the preflight; the role's own programs are not what is tested, so they sleep."""
        container = {"image": PAUSE, "volumeMounts": mounts}
        return {
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "volumes": volumes,
                "initContainers": [
                    {"name": names.CONTAINER_PREFLIGHT, "volumeMounts": mounts},
                    {"name": sidecar, "command": SLEEP, **container},
                ],
                "containers": [{"name": "main", "command": SLEEP, **container}],
            }
        }

    def change(transport: str, on_mismatch: str) -> Callable[[Obj], None]:
        def edit(spec: Obj) -> None:
            local = {"nodeClassName": REAL_CLASS, "instanceTypes": ["local"]}
            spec["framework"] = {"type": "Native"}
            spec["algorithm"] = {"type": "GRPO", "iterations": 1}
            spec["model"] = {"preset": "TinyQwen3MoE"}
            spec["communication"] = {"expertParallel": {"transport": transport, "onMismatch": on_mismatch}}
            spec["trainer"] = {"nodes": {**local, "count": 2}, "template": template(names.CONTAINER_AGENT)}
            spec["rollout"] = {
                "pools": [{"name": "main", "replicas": 1, "nodes": local}],
                "template": template(names.CONTAINER_DRIVER),
            }

        return edit

    return change


async def verdict(jobs: Jobs, status: str, reason: str) -> Obj:
    """The job, once TransportVerified says this."""

    async def probe() -> Any:
        found = await jobs.condition("TransportVerified")
        return await jobs.get() if (found.get("status"), found.get("reason")) == (status, reason) else None

    try:
        found: Obj = await until(f"TransportVerified is {status}: {reason}", probe, seconds=180)
    except AssertionError as error:
        job = await jobs.get() or {}
        pods = [p["status"].get("initContainerStatuses") for p in await jobs.pods(role="trainer")]
        raise AssertionError(f"{error}; status: {job.get('status')}; pods: {pods}") from None
    return found


async def last_words(jobs: Jobs) -> list[tuple[int, Obj]]:
    """(exit code, JSON) of the trainer pods' preflights."""
    out = []
    for pod in await jobs.pods(role="trainer"):
        state = next(s for s in pod["status"]["initContainerStatuses"] if s["name"] == names.CONTAINER_PREFLIGHT)
        ended = state["state"]["terminated"]
        assert len(ended["message"].encode()) <= 4096
        out.append((ended["exitCode"], json.loads(ended["message"])))
    return out


async def test_tcp_is_measured_and_is_what_was_asked_for(jobs: Jobs, ask: Any) -> None:
    await jobs.create(change=ask("TCP", "Fail"))
    found = await verdict(jobs, "True", "TransportMatches")
    transport = found["status"]["transport"]
    assert (transport["requested"], transport["effective"]) == ("TCP", "TCP")
    assert transport["evidence"].startswith("pod tiny-trainer-a1-")
    assert "network interfaces sent 8." in transport["evidence"]
    assert found["status"]["display"]["transport"] == "TCP"
    words = await last_words(jobs)
    assert [(code, said["transport"], said["pods"]) for code, said in words] == [(0, "TCP", 2)] * 2
    assert {said["rank"] for _, said in words} == {0, 1}
    assert len({said["fingerprint"] for _, said in words}) == 1, "two pods of one node have one data path"


async def test_a_strict_job_fails_with_that_reason(jobs: Jobs, ask: Any) -> None:
    await jobs.create(change=ask("EFAGDA", "Fail"))
    failed = await jobs.reaches("Failed", seconds=240)
    conditions = {c["type"]: c for c in failed["status"]["conditions"]}
    assert (conditions["Failed"]["status"], conditions["Failed"]["reason"]) == ("True", "TransportMismatch")
    assert conditions["Failed"]["message"].startswith("EFAGDA was asked for; pod tiny-trainer-a1-")
    assert "TCP was measured" in conditions["Failed"]["message"]
    assert "there is no EFA adapter" in conditions["Failed"]["message"]
    assert (conditions["TransportVerified"]["status"], failed["status"]["transport"]["effective"]) == ("False", "TCP")


async def test_a_job_that_only_warns_goes_on_and_says_so(jobs: Jobs, ask: Any) -> None:
    await jobs.create(change=ask("EFAGDA", "Warn"))
    found = await verdict(jobs, "False", "TransportMismatch")
    assert found["status"]["transport"]["effective"] == "TCP"

    async def runs() -> bool:
        pods = await jobs.pods(role="trainer")
        states = [s["state"] for pod in pods for s in pod["status"].get("containerStatuses") or ()]
        return len(states) == 2 and all("running" in state for state in states)

    await until("the trainers' main containers run", runs, seconds=60)
    assert [code for code, _ in await last_words(jobs)] == [0, 0]

    async def goes_on() -> bool:
        failed, degraded = await jobs.condition("Failed"), await jobs.condition("Degraded")
        return failed["status"] == "False" and (degraded["status"], degraded["reason"]) == ("True", "TransportMismatch")

    await stays("the job goes on, and is degraded", goes_on, seconds=3)
