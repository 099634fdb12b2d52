"""The rollout benchmark's decode step says what transformers says, over every backend that runs without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moerl_bench import expert_parallel_rollout as bench
from moerl_kernels import EpGroup
from support.ranks import run

pytestmark = pytest.mark.torch
SMALL = bench.Shape(
    hidden=32, layers=2, heads=4, kv_heads=2, head_dim=16, experts=8, top_k=2, expert_width=16, vocabulary=40,
    sequences=3, prompt=4, new=5,
)  # fmt: skip


def _compared() -> dict[str, Any]:
    with torch.inference_mode():
        return bench.compare(SMALL, EpGroup.of(), names=("NCCLAllToAll", "NCCLAllGather"), repetitions=1, graphs=False)


def test_every_backend_generates_what_transformers_would() -> None:
    """fp32: the same log-probabilities to rounding, teacher-forced on the generated sequences."""
    bench.make_model(SMALL, torch.device("cpu"), torch.float32)  # imports transformers once, before the fork
    for found in run(2, _compared):
        assert set(found["off"]) == {f"{n} {m}" for n in ("NCCLAllToAll", "NCCLAllGather") for m in ("exact", "static")}
        assert max(found["off"].values()) < 1e-5, found["off"]
        assert found["tokens"] == 2 * 3 * 5
        assert "tokens/s" in bench.table(found)
