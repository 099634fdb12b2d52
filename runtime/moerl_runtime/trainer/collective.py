"""The process group of the trainer gang, and the one sum that the loss needs from it.

World size 1 today. The loss is divided by the token count of all ranks all the same, so that more ranks change no
number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

RENDEZVOUS = timedelta(seconds=180)


class GangError(RuntimeError):
    """The gang cannot form; one line says why."""


def start(env: Mapping[str, str] = os.environ) -> None:
    """Join the process group named by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; alone if they are absent.

    GangError for a world that this runtime cannot train on, or when the rendezvous fails within 180 s.
    """
    world = int(env.get("WORLD_SIZE") or 1)
    if world != 1:
        raise GangError(f"WORLD_SIZE is {world}: this native runtime trains on one node; set trainer.nodes.count to 1")
    # Alone, gloo needs no interface but loopback; the pod's host name need not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if env.get("MASTER_ADDR"):
            dist.init_process_group("gloo", init_method="env://", rank=0, world_size=1, timeout=RENDEZVOUS)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=RENDEZVOUS)
    except (RuntimeError, ValueError) as error:
        where = f"{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}"
        raise GangError(f"rendezvous at {where} failed: {error}; does the address resolve to this pod?") from error


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def global_sum(value: float) -> float:
    """The sum over all ranks, in double precision."""
    if not dist.is_initialized():
        return value
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total.item())
