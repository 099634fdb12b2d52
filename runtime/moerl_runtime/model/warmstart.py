"""A small supervised checkpoint to start RL from, as RL has in practice: `python -m moerl_runtime.model.warmstart`.

Supervised training on training prompts only, stopped as soon as greedy exact match on held-out prompts lies in the
wanted band, so that nearly all of the task is left to RL. Deterministic by seed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import torch
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.checkpoint import storage
from moerl_runtime.tasks import reverse
from moerl_runtime.tasks import task as tasks
from moerl_runtime.tasks.task import Task

from .evaluate import exact_match
from .tiny import build_tiny, save_folder

BAND = (0.22, 0.30)
"""Greedy exact match at which the supervised training stops."""
_BATCH = 64
_MAX_STEPS = 4000
_LEARNING_RATE = 2e-3


class WarmStartError(RuntimeError):
    """The band was not met; another seed or band is needed."""


def warm_start(
    task: Task, *, seed: int, band: tuple[float, float] = BAND, learning_rate: float = _LEARNING_RATE
) -> tuple[PreTrainedModel, float, int]:
    """(model, its exact match on 512 held-out prompts, supervised steps). WarmStartError if the band is never met."""
    model = build_tiny(vocab_size=task.vocabulary_size, pad=reverse.PAD, bos=reverse.BOS, eos=reverse.EOS, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    heldout = task.heldout(512)
    cursor = itertools.count()
    for step in range(1, _MAX_STEPS + 1):
        _supervised_step(model, optimizer, task, [task.prompt(next(cursor)) for _ in range(_BATCH)])
        exact = exact_match(model, task, heldout)
        if band[0] <= exact <= band[1]:
            return model, exact, step
    raise WarmStartError(f"seed {seed} never had an exact match in {band[0]}..{band[1]}; take another seed")


def answer_of(task: Task, prompt: list[int]) -> list[int]:
    """The right answer, found token by token through the task's own score: tasks tell scores, not answers."""
    answer: list[int] = []
    for _ in range(task.answer_length):
        options = [(task.score(prompt, [*answer, token]).reward, token) for token in range(task.vocabulary_size)]
        answer.append(max(options)[1])
    return answer


def _supervised_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, task: Task, prompts: list[list[int]]
) -> None:
    ids = torch.tensor([[*prompt, *answer_of(task, prompt)] for prompt in prompts])
    answers = ids[:, -task.answer_length :]
    logits = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=task.answer_length).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def main(argv: list[str] | None = None) -> int:
    """Write a warm-start folder to a local path, file:// or s3://."""
    parser = argparse.ArgumentParser(prog="python -m moerl_runtime.model.warmstart", description=__doc__)
    parser.add_argument("--out", required=True, help="folder, file:// or s3:// location to write to")
    parser.add_argument("--dataset", default="builtin://reverse-4", help="task to train on (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        task = tasks.load(arguments.dataset, seed=arguments.seed)
        model, exact, steps = warm_start(task, seed=arguments.seed)
        out = arguments.out if "://" in arguments.out else Path(arguments.out).resolve().as_uri()
        with tempfile.TemporaryDirectory() as folder:
            save_folder(model, Path(folder))
            storage.upload_folder(Path(folder), out)
    except (WarmStartError, tasks.TaskError, storage.StorageError) as error:
        print(f"warm start: {error}", file=sys.stderr)
        return 1
    print(f"{out}: exact match {exact:.3f} on held-out prompts after {steps} supervised steps of {_BATCH} prompts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
