"""One run of the comparison: create an object, wait until its 48 pods run, delete it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from moerl_bench.errors import BenchError
from moerl_operator.kube.api import Kind, Kinds, KubeApi

JOB_SET = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LIMIT_SECONDS = 180.0


async def running(api: KubeApi, kind: Kind, obj: Mapping[str, Any], *, selector: str, pods: int) -> float:
    """Seconds from creating `obj` until `pods` pods of `selector` are Running, by a watch opened beforehand.

    Raises:
        BenchError: that did not happen within three minutes.
    """
    namespace = str(obj["metadata"]["namespace"])
    began = 0.0
    seen: set[str] = set()

    async def watch() -> float:
        while True:
            async for event, pod in api.watch(Kinds.POD, namespace, label_selector=selector):
                if event == "BOOKMARK":
                    continue
                if event != "DELETED" and pod.get("status", {}).get("phase") == "Running":
                    seen.add(str(pod["metadata"]["uid"]))
                if len(seen) >= pods:
                    return time.monotonic() - began

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.5)  # the watch is open
    began = time.monotonic()
    await api.create(kind, obj)
    try:
        return await asyncio.wait_for(watching, LIMIT_SECONDS)
    except TimeoutError as error:
        name = obj["metadata"]["name"]
        raise BenchError(
            f"{kind.kind} {name}: {len(seen)} of {pods} pods Running after {LIMIT_SECONDS:.0f} s"
        ) from error


async def gone(api: KubeApi, kind: Kind, namespace: str, name: str) -> float:
    """Delete the object; seconds until it and every pod of the namespace are gone.

    Raises:
        BenchError: something is left after three minutes.
    """
    began = time.monotonic()
    await api.delete(kind, namespace, name)
    while time.monotonic() - began < LIMIT_SECONDS:
        if await api.get(kind, namespace, name) is None and not await api.list(Kinds.POD, namespace):
            return time.monotonic() - began
        await asyncio.sleep(0.2)
    raise BenchError(f"{kind.kind} {namespace}/{name} or its pods are still there {LIMIT_SECONDS:.0f} s after deletion")


async def condition(api: KubeApi, namespace: str, name: str, type_: str, *, seconds: float = LIMIT_SECONDS) -> float:
    """Seconds until a MoERLJob's condition is True.

    Raises:
        BenchError: it is not within `seconds`.
    """
    began = time.monotonic()
    job: dict[str, Any] | None = None
    while time.monotonic() - began < seconds:
        job = await api.get(Kinds.MOERL_JOB, namespace, name)
        conditions = (job or {}).get("status", {}).get("conditions", [])
        if any(c["type"] == type_ and c["status"] == "True" for c in conditions):
            return time.monotonic() - began
        await asyncio.sleep(0.2)
    raise BenchError(
        f"MoERLJob {namespace}/{name} is not {type_} after {seconds:.0f} s: {(job or {}).get('status', {})}"
    )
