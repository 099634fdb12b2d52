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
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from moerl_kernels.proof import libraries
from moerl_kernels.proof.evidence import Library

POLL_SECONDS = 0.02
_MAGIC, _LAYOUT = 0xCAFEBEEF, 22907  # of ncclCommProperties in NCCL 2.29.7's nccl_device/core.h; later ones read it

Obj = dict[str, Any]
# Moves everything once; says whether what came last is right.
Mover = tuple[Callable[[], None], Callable[[], bool]]


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
    move, correct = (_deep_ep if job["mover"] == "deep_ep" else _collective)(job, device)
    _write(folder / f"seen.{local}", {"members": seen})

    def settle() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    move()  # connects every pair, and compiles what is compiled at first use; not counted
    settle()
    _write(folder / f"ready.{local}", {})
    while not (folder / "go").exists():
        time.sleep(POLL_SECONDS)
    for _ in range(job["rounds"]):
        move()
    settle()
    mapped = libraries.mapped()
    _write(
        folder / f"result.{local}",
        {
            "correct": correct(),
            "libraries": [asdict(library) for library in mapped],
            "properties": _nccl_properties(dist, device, mapped) if on_gpu else {},
        },
    )
    dist.destroy_process_group()


def _collective(job: Obj, device: Any) -> Mover:
    """All to all: every word tells who sent it, to whom and at which place."""
    import torch
    import torch.distributed as dist

    ranks, rank, length = int(job["ranks"]), int(job["rank"]), int(job["bytes_per_peer"]) // 8
    send = torch.arange(ranks * length, device=device).view(ranks, length) + (rank << 40)
    got = torch.empty_like(send)

    def move() -> None:
        got.zero_()
        dist.all_to_all_single(got.view(-1), send.view(-1))

    def correct() -> bool:
        senders = torch.arange(ranks, device=device).view(-1, 1) << 40
        return bool((got == torch.arange(length, device=device) + rank * length + senders).all())

    return move, correct


def _deep_ep(job: Obj, device: Any) -> Mover:
    """Dispatch and combine of DeepEP, each token to one expert of the next rank in turn; experts change nothing."""
    import torch

    from moerl_kernels.backends.deepep import DeepEP
    from moerl_kernels.config import EpConfig
    from moerl_kernels.group import EpGroup

    ranks, rank, tokens, hidden = int(job["ranks"]), int(job["rank"]), int(job["tokens"]), int(job["hidden"])
    config = EpConfig(
        num_experts=ranks, top_k=1, hidden=hidden, max_tokens_per_rank=tokens, dtype=torch.bfloat16, layout="compact"
    )
    backend = DeepEP(config, EpGroup.of(device=device))
    index = torch.arange(tokens, device=device)
    # Whole numbers that bf16 holds; columns differ too, so that a shifted row is seen.
    x = ((index.view(-1, 1) + 7 * rank) % 128 + torch.arange(hidden, device=device) % 2 * 128).to(torch.bfloat16)
    expert = ((index + rank) % ranks).view(-1, 1)
    out = [torch.zeros_like(x)]

    def move() -> None:
        got = backend.dispatch(x, expert)
        out[0] = backend.combine(got.rows, got.handle)

    def correct() -> bool:
        same = torch.equal(out[0], x)
        backend.close()
        return same

    return move, correct


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
