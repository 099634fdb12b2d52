"""Measures the control plane in one run and returns every raw figure; nothing is measured elsewhere or typed in."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from moerl_bench import audit, race, rig, shapes
from moerl_bench.errors import BenchError
from moerl_local.cluster import build
from moerl_local.cluster.handle import Cluster
from moerl_operator.api import names
from moerl_operator.kube.api import Kinds, KubeApi
from moerl_operator.kube.client import connect

IDLE_SECONDS = 60.0
SETTLE_SECONDS = 10.0
# The MoERLJob; a JobSet of the very same pods; a JobSet of pods with nothing but their devices.
RACERS = ("moerl", "jobset", "jobsetBare")
Say = Callable[[str], None]
Figures = dict[str, Any]


def measure(*, cluster_name: str, repetitions: int, say: Say) -> Figures:
    """All figures, as JSON.

    Raises:
        BenchError: the rig could not be set up, or a run did not finish.
    """
    say("cluster: start, stop, start again")
    started = rig.start(cluster_name)
    cluster = started.cluster
    figures: Figures = {"machine": _machine(), "warmStartSeconds": started.warm_start}
    say("nodes, custom resources, accounts")
    load = rig.furnish(cluster)
    with rig.jobset(cluster):
        figures |= asyncio.run(_measure(cluster, load, repetitions, say))
    figures["finished"] = rig.now().isoformat(timespec="seconds")
    return figures


async def _measure(cluster: Cluster, load: Path, repetitions: int, say: Say) -> Figures:
    out: Figures = {}
    async with connect(load, user_agent="moerl-bench") as api:
        with rig.operator(cluster) as process:
            out["race"] = await _race(api, cluster, repetitions, say)
            out["memoryMiB"] = rig.memory_mib(process)
            say("a finished and a running job, left alone")
            out["idle"] = await _idle(api, cluster)
        say("operator restart under a running job")
        out["restart"] = await _restart(api, cluster)
        await race.gone(api, Kinds.MOERL_JOB, rig.NAMESPACE, "running")
    return out


async def _race(api: KubeApi, cluster: Cluster, repetitions: int, say: Say) -> Figures:
    """Interleaved runs, each beginning with another one, so that a noisy minute hits all."""
    runs: list[Figures] = []
    jobs = await _rendered(api)
    for number in range(repetitions):
        order = [RACERS[(number + place) % len(RACERS)] for place in range(len(RACERS))]
        run: Figures = {who: await _one(api, cluster, who, number, jobs) for who in order}
        runs.append(run)
        said = ", ".join(f"{who} {run[who]['seconds']:.2f} s" for who in RACERS)
        say(f"48 pods, run {number + 1}/{repetitions}: {said}")
    return {"pods": shapes.GANG_PODS, "runs": runs}


async def _rendered(api: KubeApi) -> list[dict[str, Any]]:
    """The Jobs that the operator makes of the shape, from one run before the race (which warms both sides, too)."""
    obj = shapes.moerl_job("rendered", rig.NAMESPACE)
    selector = f"{names.LABEL_JOB}=rendered"
    await race.running(api, Kinds.MOERL_JOB, obj, selector=_gang("rendered"), pods=shapes.GANG_PODS)
    jobs = await api.list(Kinds.JOB, rig.NAMESPACE, label_selector=selector)
    await race.gone(api, Kinds.MOERL_JOB, rig.NAMESPACE, "rendered")
    return jobs


def _gang(name: str) -> str:
    return f"{names.LABEL_JOB}={name},{names.LABEL_ROLE} in ({names.TRAINER},{names.ROLLOUT})"


async def _one(api: KubeApi, cluster: Cluster, who: str, number: int, jobs: list[dict[str, Any]]) -> Figures:
    name = f"{who.lower()}-{number}"
    if who == "moerl":
        kind, obj, user = Kinds.MOERL_JOB, shapes.moerl_job(name, rig.NAMESPACE), rig.OPERATOR
        selector = _gang(name)
    else:
        kind, user, selector = race.JOB_SET, rig.JOBSET, f"jobset.sigs.k8s.io/jobset-name={name}"
        bare = who == "jobsetBare"
        obj = shapes.job_set(name, rig.NAMESPACE) if bare else shapes.job_set_like(name, rig.NAMESPACE, jobs)
    began = rig.now()
    seconds = await race.running(api, kind, obj, selector=selector, pods=shapes.GANG_PODS)
    ready = None
    if who == "moerl":
        ready = round(seconds + await race.condition(api, rig.NAMESPACE, name, "Ready"), 2)
    await asyncio.sleep(SETTLE_SECONDS)
    running = rig.now()
    deleted = await race.gone(api, kind, rig.NAMESPACE, name)
    await asyncio.sleep(2)
    events = audit.read(cluster.audit_log)
    return {
        "seconds": round(seconds, 3),
        "readySeconds": ready,
        "deleteSeconds": round(deleted, 2),
        "writesToRunning": _count(events, user, began, running),
        "writesToDeleted": _count(events, user, running, rig.now()),
    }


def _count(events: list[dict[str, Any]], user: str, start: datetime, end: datetime) -> dict[str, int]:
    return dict(sorted(audit.without(audit.writes(events, user=user, start=start, end=end), "leases").items()))


async def _idle(api: KubeApi, cluster: Cluster) -> Figures:
    await api.create(Kinds.MOERL_JOB, shapes.moerl_job("finished", rig.NAMESPACE, finish=True))
    await race.condition(api, rig.NAMESPACE, "finished", "Complete")
    selector = f"{names.LABEL_JOB}=running,{names.LABEL_ROLE} in ({names.TRAINER},{names.ROLLOUT})"
    job = shapes.moerl_job("running", rig.NAMESPACE)
    await race.running(api, Kinds.MOERL_JOB, job, selector=selector, pods=shapes.GANG_PODS)
    await race.condition(api, rig.NAMESPACE, "running", "Ready")
    await asyncio.sleep(SETTLE_SECONDS)
    start = rig.now()
    await asyncio.sleep(IDLE_SECONDS)
    counted = audit.writes(audit.read(cluster.audit_log), user=rig.OPERATOR, start=start, end=rig.now())
    await api.delete(Kinds.MOERL_JOB, rig.NAMESPACE, "finished")
    return {"seconds": IDLE_SECONDS, "writes": dict(sorted(counted.items()))}


async def _restart(api: KubeApi, cluster: Cluster) -> Figures:
    """The operator was stopped before this; pods are looked at before it starts and after it settled."""
    before = await _pod_uids(api)
    start = rig.now()
    clock = time.monotonic()
    with rig.operator(cluster) as process:
        leading = time.monotonic() - clock
        await asyncio.sleep(3 * SETTLE_SECONDS)
        counted = _count(audit.read(cluster.audit_log), rig.OPERATOR, start, rig.now())
        after = await _pod_uids(api)
        memory = rig.memory_mib(process)
    if not before:
        raise BenchError("there was no pod to watch over the restart")
    return {
        "pods": len(before),
        "changedPods": len(before ^ after),
        "secondsToLead": round(leading, 2),
        "writes": counted,
        "memoryMiB": memory,
    }


async def _pod_uids(api: KubeApi) -> set[str]:
    pods = await api.list(Kinds.POD, rig.NAMESPACE, label_selector=f"{names.LABEL_JOB}=running")
    return {str(pod["metadata"]["uid"]) for pod in pods}


def _machine() -> Figures:
    return {
        "cores": os.cpu_count(),
        "memoryGiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "kubernetes": build.KUBERNETES_VERSION,
        "jobset": rig.JOBSET_VERSION,
    }


def totals(counted: dict[str, int]) -> Counter[str]:
    """Counts by verb, whatever the resource."""
    by_verb: Counter[str] = Counter()
    for key, number in counted.items():
        by_verb[key.split(" ")[0]] += number
    return by_verb


def write(figures: Figures, path: Path) -> None:
    """Keep the raw figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
