"""One rank's part of a preflight with torch: `python -m moerl_kernels.proof.device_exchange <job file>`.

A program of its own, because a collective that hangs can only be ended by ending its process. The parent starts one
for each GPU (or one on the CPU, with gloo); they meet, tell the parent that they are ready, wait for its word (it reads
the counters then), exchange, check, and write down what they saw. Files in a folder are the only channel, so nothing
can block on a pipe. Imports torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from moerl_kernels.proof import libraries
from moerl_kernels.proof.evidence import Library

POLL_SECONDS = 0.02
_MAGIC, _LAYOUT = 0xCAFEBEEF, 22907  # of ncclCommProperties in NCCL 2.29.7's nccl_device/core.h; later ones read it

Obj = dict[str, Any]


class _Properties(ctypes.Structure):
    """ncclCommProperties as of _LAYOUT."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("rank", ctypes.c_int),
        ("nRanks", ctypes.c_int),
        ("cudaDev", ctypes.c_int),
        ("nvmlDev", ctypes.c_int),
        ("deviceApiSupport", ctypes.c_bool),
        ("multimemSupport", ctypes.c_bool),
        ("ginType", ctypes.c_int),
        ("nLsaTeams", ctypes.c_int),
        ("hostRmaSupport", ctypes.c_bool),
        ("railedGinType", ctypes.c_int),
    )


def main(job: Obj) -> None:
    """Run one rank. `job`: as devices.exchange writes it (folder, backend, local, rank, ranks, address, port, ...)."""
    import torch
    import torch.distributed as dist

    folder, local = Path(job["folder"]), int(job["local"])
    on_gpu = job["backend"] == "nccl"
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        job["backend"],
        init_method=f"tcp://{job['address']}:{job['port']}",
        rank=job["rank"],
        world_size=job["ranks"],
        device_id=device if on_gpu else None,
        timeout=timedelta(seconds=job["seconds"]),
    )
    seen: list[Obj] = [{} for _ in range(job["ranks"])]
    uuid = str(torch.cuda.get_device_properties(device).uuid) if on_gpu else ""
    dist.all_gather_object(seen, {"node": job["node"], "device": uuid})
    length = job["bytes_per_peer"] // 8
    send = torch.arange(job["ranks"] * length, device=device).view(job["ranks"], length) + (job["rank"] << 40)
    got = torch.empty_like(send)
    _write(folder / f"seen.{local}", {"members": seen})

    def settle() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    _exchange(dist, got, send)  # connects every pair, and is not counted
    settle()
    _write(folder / f"ready.{local}", {})
    while not (folder / "go").exists():
        time.sleep(POLL_SECONDS)
    got.zero_()
    for _ in range(job["rounds"]):
        _exchange(dist, got, send)
    settle()
    ranks = torch.arange(job["ranks"], device=device).view(-1, 1)
    wanted = torch.arange(length, device=device) + job["rank"] * length + (ranks << 40)
    mapped = libraries.mapped()
    _write(
        folder / f"result.{local}",
        {
            "correct": bool((got == wanted).all()),
            "libraries": [asdict(library) for library in mapped],
            "properties": _nccl_properties(dist, device, mapped) if on_gpu else {},
        },
    )
    dist.destroy_process_group()


def _exchange(dist: Any, got: Any, send: Any) -> None:
    dist.all_to_all_single(got.view(-1), send.view(-1))


def _nccl_properties(dist: Any, device: Any, mapped: tuple[Library, ...]) -> Obj:
    """gin_type, device_api, multicast of the default group's communicator; empty where NCCL has no such call."""
    paths = [library.path for library in mapped if library.name == "libnccl"]
    if len(paths) != 1:
        return {}
    library = ctypes.CDLL(paths[0])
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    if version.value < _LAYOUT:
        return {}
    backend = dist.group.WORLD._get_backend(device)
    out = _Properties(size=ctypes.sizeof(_Properties), magic=_MAGIC, version=_LAYOUT)
    if not hasattr(backend, "_comm_ptr") or not hasattr(library, "ncclCommQueryProperties"):
        return {}
    if library.ncclCommQueryProperties(ctypes.c_void_p(backend._comm_ptr()), ctypes.byref(out)):
        return {}
    return {"gin_type": out.ginType, "device_api": out.deviceApiSupport, "multicast": out.multimemSupport}


def _write(path: Path, body: Obj) -> None:
    temporary = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    temporary.write_text(json.dumps(body))
    temporary.replace(path)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
