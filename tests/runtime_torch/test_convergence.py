"""The acceptance figure in one process: from a warm start of at most 0.3 to an exact match of 0.9 on held-out prompts.

The whole chain of processes is the same learner; `make demo` and the tests of real pods run it. Settings are those of
examples/reverse.yaml, samples are exactly one version old.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from moerl_operator.api.job import Algorithm
from moerl_runtime.checkpoint import storage
from moerl_runtime.model.evaluate import exact_match
from moerl_runtime.model.tiny import load_folder
from moerl_runtime.model.warmstart import main, warm_start
from moerl_runtime.tasks import task as tasks
from support.rehearsal import rehearse

pytestmark = pytest.mark.torch


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_to_reverse_prompts_that_it_never_drew(root: Path, seed: int) -> None:
    spec = yaml.safe_load((root / "examples/reverse.yaml").read_text())["spec"]
    algorithm = Algorithm.model_validate({**spec["algorithm"], "seed": seed})
    assert algorithm.iterations <= 350
    task = tasks.load(spec["storage"]["dataset"], seed=seed)
    model, before, _ = warm_start(task, seed=seed)
    assert before <= 0.3
    evaluations = {step: exact for step, _, exact in rehearse(model, algorithm, task) if exact is not None}
    cursors = range((algorithm.iterations + 2) * algorithm.prompts_per_iteration)
    drawn = {tuple(task.prompt(cursor)) for cursor in cursors}
    heldout = task.heldout(512)
    assert not drawn & {tuple(prompt) for prompt in heldout}
    # The policy that the run ends with, not the best one on the way.
    assert exact_match(model, task, heldout) >= 0.9, f"seed {seed}, on the way: {evaluations}"


def test_the_warm_start_is_the_same_for_the_same_seed_and_is_a_folder_on_s3(s3: str, tmp_path: Path) -> None:
    assert main(["--out", f"{s3}/{tmp_path.name}/warm"]) == 0
    assert main(["--out", str(tmp_path / "again")]) == 0
    there = storage.download_folder(f"{s3}/{tmp_path.name}/warm", tmp_path / "there")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (there, tmp_path / "again")]
    assert weights[0] == weights[1]
    task = tasks.load("builtin://reverse-4", seed=0)
    assert 0.1 <= exact_match(load_folder(there), task, task.heldout(512)) <= 0.3
    assert main(["--out", "s3://absent/x"]) == 1
