"""The benchmarks that need two GPUs say so, and a rank that fails fails the run."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

import pytest
import torch

from moerl_bench import expert_parallel, expert_parallel_rollout, gpu_ranks

pytestmark = pytest.mark.torch


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="there are two GPUs")
@pytest.mark.parametrize("program", [expert_parallel, expert_parallel_rollout])
def test_too_few_gpus_are_one_line(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x"])
    assert program.main() == 2
    assert "needs two GPUs or more on one host; found" in capsys.readouterr().err


def _second_fails(rank: int, size: int, options: argparse.Namespace) -> None:
    assert size == 2
    raise SystemExit(options.code if rank == 1 else 0)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_a_failed_rank_is_the_runs(code: int) -> None:
    assert gpu_ranks.run(_second_fails, 2, argparse.Namespace(code=code)) == code
