"""The parent's part of an exchange by torch: one process a GPU, counters around it, an end in time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from moerl_kernels.proof import counters, libraries, nccl_log
from moerl_kernels.proof.evidence import Evidence, Exchange, ExchangeKind, Library, LogFacts, NcclProperties
from moerl_kernels.proof.exchange import Place

BYTES_PER_PEER = 16 << 20
ROUNDS = 4
# Of a dispatch by DeepEP: bf16 rows, which its combine sends back.
TOKENS, HIDDEN = 2048, 4096
_POLL_SECONDS = 0.05
_TAIL = 300

Obj = dict[str, Any]
Backend = Literal["nccl", "gloo"]
Mover = Literal["collective", "deep_ep"]


def count(environment: Mapping[str, str], root: Path = Path("/")) -> int:
    """GPUs of this container: its device files, or as many of them as CUDA_VISIBLE_DEVICES leaves."""
    files = [path for path in (root / "dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(files)
    return min(len(files), len([item for item in visible.split(",") if item.strip() not in ("", "-1", "void")]))


def exchange(
    place: Place,
    gpus: int,
    *,
    deadline: float,
    environment: Mapping[str, str],
    backend: Backend = "nccl",
    mover: Mover = "collective",
) -> Evidence:
    """All-to-all between the GPUs of the gang's pods, with counters around it; by gloo between CPU processes.

    mover: a collective of the backend, or dispatch and combine of DeepEP over its process group.
    Every pod has `gpus` of them (gloo: processes). Nothing is raised: an exchange that fails or is too slow is one that
    did not complete.
    """
    with tempfile.TemporaryDirectory(prefix="moerl-preflight-") as name:
        folder = Path(name)
        children = [_start(place, gpus, local, folder, deadline, environment, backend, mover) for local in range(gpus)]
        try:
            return _watch(place, gpus, folder, children, deadline, environment, backend, mover)
        finally:
            for child in children:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _start(
    place: Place,
    gpus: int,
    local: int,
    folder: Path,
    deadline: float,
    environment: Mapping[str, str],
    backend: Backend,
    mover: Mover,
) -> subprocess.Popen[bytes]:
    job = {
        "folder": str(folder),
        "backend": backend,
        "mover": mover,
        "tokens": TOKENS // (place.size * gpus) * place.size * gpus,  # as many to each rank
        "hidden": HIDDEN,
        "local": local,
        "rank": place.rank * gpus + local,
        "ranks": place.size * gpus,
        "address": place.address,
        "port": place.port + 1,
        "node": place.node,
        "bytes_per_peer": BYTES_PER_PEER,
        "rounds": ROUNDS,
        "seconds": max(deadline - time.monotonic(), 1.0),
    }
    file = folder / f"job.{local}"
    file.write_text(json.dumps(job))
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p")}
    # All to all is over pairs, so NVLink's multicast would only add memory and one more thing that can fail.
    own = {"NCCL_NVLS_ENABLE": "0"}
    with (folder / f"output.{local}").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "moerl_kernels.proof.device_exchange", str(file)],
            env={**own, **environment, **log},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _watch(
    place: Place,
    gpus: int,
    folder: Path,
    children: list[subprocess.Popen[bytes]],
    deadline: float,
    environment: Mapping[str, str],
    backend: Backend,
    mover: Mover,
) -> Evidence:
    ranks = place.size * gpus
    kind: ExchangeKind = "deep_ep" if mover == "deep_ep" else backend
    per_peer = (
        2 * (TOKENS // ranks) * HIDDEN * 2 if mover == "deep_ep" else BYTES_PER_PEER
    )  # there and back, 2 bytes each
    problem = _wait(folder, "ready", gpus, children, deadline)
    if problem:
        return Evidence(Exchange(kind, ranks, completed=False, error=problem), log=_log(folder))
    before = counters.read(nvlink_text=counters.nvlink_output())
    began = time.monotonic()
    (folder / "go").touch()
    problem = _wait(folder, "result", gpus, children, deadline)
    seconds = time.monotonic() - began
    after = counters.read(nvlink_text=counters.nvlink_output())
    members: list[Obj] = json.loads((folder / "seen.0").read_text())["members"]
    here = sum(member["node"] == place.node for member in members)
    payload = per_peer * ROUNDS * gpus
    results: list[Obj] = [] if problem else [json.loads((folder / f"result.{i}").read_text()) for i in range(gpus)]
    if not problem and not all(result["correct"] for result in results):
        problem = "a rank received other bytes than were sent"
    mapped = {Library(**item) for result in results for item in result["libraries"]}
    found = tuple(sorted(mapped, key=lambda library: (library.name, library.path)))
    plugin = libraries.plugin(Path("/"), found, environment)
    return Evidence(
        exchange=Exchange(
            kind,
            ranks,
            hosts=len({member["node"] for member in members}),
            devices=len({member["device"] for member in members} - {""}),
            sent_between_hosts=payload * (ranks - here),
            sent_within_host=payload * (here - 1),
            completed=not problem,
            error=problem,
            seconds=seconds,
        ),
        traffic=counters.rose(before, after),
        libraries=found,
        plugin=plugin,
        plugin_symbols=libraries.plugin_symbols(Path("/"), plugin),
        nccl=NcclProperties(**results[0]["properties"]) if results else NcclProperties(),
        log=_log(folder),
    )


def _wait(folder: Path, what: str, gpus: int, children: list[subprocess.Popen[bytes]], deadline: float) -> str:
    """Until every rank of this pod has written `what`; the reason if one never will."""
    while True:
        missing = [local for local in range(gpus) if not (folder / f"{what}.{local}").exists()]
        if not missing:
            return ""
        for local in missing:
            # Written and ended between the two looks is no failure.
            if children[local].poll() is not None and not (folder / f"{what}.{local}").exists():
                tail = (folder / f"output.{local}").read_text(errors="replace").strip()[-_TAIL:]
                return f"the process of local rank {local} ended with exit code {children[local].returncode}: {tail}"
        if time.monotonic() >= deadline:
            return f"local ranks {missing} were not {'ready' if what == 'ready' else 'done'} in time"
        time.sleep(_POLL_SECONDS)


def _log(folder: Path) -> LogFacts:
    files = sorted(folder.glob("nccl.*"))
    return nccl_log.parse(line for file in files for line in file.read_text(errors="replace").splitlines())
