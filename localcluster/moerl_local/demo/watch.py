"""Looks at a job until it ends, by the same API that kubectl uses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable

from moerl_local.cluster.handle import Cluster
from moerl_local.demo.errors import DemoError
from moerl_local.demo.record import Obj, Record, now
from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi, KubeError
from moerl_operator.kube.client import connect

EVERY_SECONDS = 2.0


def until_finished(
    cluster: Cluster, record: Record, *, namespace: str, name: str, seconds: float, show: Callable[[str], None]
) -> None:
    """Fill `record` and call `show` with kubectl's table every two seconds until the job is Complete.

    Raises:
        DemoError: the job failed, vanished, or was not Complete within `seconds`; says what to look at.
    """
    asyncio.run(_until_finished(cluster, record, namespace, name, seconds, show))


async def _until_finished(
    cluster: Cluster, record: Record, namespace: str, name: str, seconds: float, show: Callable[[str], None]
) -> None:
    deadline = time.monotonic() + seconds
    async with connect(cluster.admin_kubeconfig, user_agent="moerl-demo") as api:
        while True:
            job = await api.get(Kinds.MOERL_JOB, namespace, name)
            if job is None:
                raise DemoError(f"moerljob {namespace}/{name} was deleted while the demo watched it")
            await _look(api, record, job, namespace, name)
            show(await asyncio.to_thread(_table, cluster, namespace, name))
            true = {c["type"]: c for c in job.get("status", {}).get("conditions", []) if c["status"] == "True"}
            if "Complete" in true:
                record.finished = now()
                return
            if "Failed" in true:
                record.finished = now()
                raise DemoError(f"the job failed: {true['Failed'].get('reason')}: {true['Failed'].get('message')}")
            if time.monotonic() > deadline:
                raise DemoError(f"the job was not Complete within {seconds:.0f} s; {_stuck(job, record)}")
            await asyncio.sleep(EVERY_SECONDS)


async def _look(api: KubeApi, record: Record, job: Obj, namespace: str, name: str) -> None:
    record.see_job(job)
    selector = f"{names.LABEL_JOB}={name}"
    record.see_pods(await api.list(Kinds.POD, namespace, label_selector=selector))
    record.see_events(await api.list(Kinds.EVENT, namespace))
    report = await api.get(Kinds.CONFIG_MAP, namespace, names.report(name))
    text = ((report or {}).get("data") or {}).get("report.json")
    if text:
        record.see_report(json.loads(text))


def _table(cluster: Cluster, namespace: str, name: str) -> str:
    command = [str(cluster.bin_dir / "kubectl"), f"--kubeconfig={cluster.admin_kubeconfig}"]
    done = subprocess.run(
        [*command, "-n", namespace, "get", "moerljobs", name], capture_output=True, text=True, check=False
    )
    return done.stdout or done.stderr


def _stuck(job: Obj, record: Record) -> str:
    """What a person should look at first."""
    waiting = [f"pod {pod['name']}: {pod['waiting']}" for pod in record.pods.values() if pod.get("waiting")]
    false = [
        f"{c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}"
        for c in job.get("status", {}).get("conditions", [])
        if c["status"] == "False"
        and c["type"] in ("Accepted", "NodesReady", "TrainersReady", "RolloutsReady", "Progressing")
    ]
    return "; ".join([*false, *waiting][:3]) or "its status names no cause"


__all__ = ["KubeError", "until_finished"]
