"""Real pods that cannot start or end badly: the role's condition names the container, the reason and the exit code.

The trainer is on the real node, everything else on fake ones.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from moerl_local.cluster.handle import Cluster
from support.waiting import until

from .conftest import NODE_CLASS, Jobs

pytestmark = [pytest.mark.e2e, pytest.mark.node]

PAUSE = "moerl.dev/pause:local"
REAL_CLASS = "e2e-real"
# The machine's own programs, mounted into an image that has none.
MOUNTS = {"/usr": "/usr", "/bin": "/usr/bin", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}


@pytest.fixture
def real_class(installed: Cluster, node_cluster: Cluster) -> str:
    """A class whose pods may mount the machine's programs."""
    found = json.loads(installed.kubectl("get", "moerlnodeclass", NODE_CLASS, "-o", "json"))
    manifest = {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": {"name": REAL_CLASS},
        "spec": {**found["spec"], "permittedHostPaths": sorted({*MOUNTS.values()})},
    }
    node_cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(manifest))
    return REAL_CLASS


def trainer(node_class: str, script: str, **container: Any) -> dict[str, Any]:
    """A trainer on the real node that runs a Python script."""
    mounts = [{"name": path.strip("/"), "mountPath": path, "readOnly": True} for path in MOUNTS]
    main = {"name": "main", "image": PAUSE, "command": ["/usr/bin/python3", "-c", script], "volumeMounts": mounts}
    volumes = [{"name": path.strip("/"), "hostPath": {"path": source}} for path, source in MOUNTS.items()]
    return {
        "nodes": {"nodeClassName": node_class, "count": 1, "instanceTypes": ["local"]},
        "template": {"spec": {"containers": [{**main, **container}], "volumes": volumes}},
    }


async def told(jobs: Jobs, reason: str) -> str:
    """The message of TrainersReady, once it is False for a reason."""

    async def probe() -> str | None:
        found = await jobs.condition("TrainersReady")
        return found["message"] if (found.get("status"), found.get("reason")) == ("False", reason) else None

    message: str = await until(f"TrainersReady is False: {reason}", probe, seconds=120)
    return message


async def test_an_image_that_is_not_there(jobs: Jobs, real_class: str) -> None:
    image = "127.0.0.1:1/moerl/absent:1"  # nobody listens there
    await jobs.create(change=lambda spec: spec.update(trainer=trainer(real_class, "", image=image)))
    message = await told(jobs, "ImagePullBackOff")
    assert "container main of pod tiny-trainer-a1-0-" in message
    assert f"image {image} cannot be pulled" in message
    assert (await jobs.condition("Ready"))["status"] == "False"


@pytest.mark.parametrize(
    ("script", "reason", "code"),
    [
        ("import sys; sys.exit(7)", "Error", 7),
        ("held = [bytearray(1 << 20) for _ in range(512)]", "OOMKilled", 137),
    ],
)
async def test_a_program_that_ends_badly(jobs: Jobs, real_class: str, script: str, reason: str, code: int) -> None:
    wish = trainer(real_class, script, resources={"limits": {"memory": "64Mi"}})
    await jobs.create(change=lambda spec: spec.update(trainer={**wish, "failurePolicy": {"maxRestarts": 0}}))
    message = await told(jobs, reason)
    assert "attempt 1 failed: container main of pod tiny-trainer-a1-0-" in message
    assert f"{reason}, exit code {code}" in message
    failed = await jobs.reaches("Failed")
    last = failed["status"]["lastFailure"]
    assert (last["reason"], last["exitCode"], last["container"], last["kind"]) == (reason, code, "main", "Application")
