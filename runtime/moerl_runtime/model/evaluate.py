"""Greedy exact match on held-out prompts: the figure by which a policy is judged."""

from __future__ import annotations

from collections.abc import Sequence

from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.rollout.engine_sampler import Row, Sampling, sample
from moerl_runtime.tasks.task import Task

PROMPTS = 256
"""Held-out prompts in an evaluation during a run; a proportion of 0.9 then has a standard error of 0.02."""


def exact_match(model: PreTrainedModel, task: Task, prompts: Sequence[Sequence[int]]) -> float:
    """Fraction of prompts that the greedy policy answers exactly. The model's mode (train, eval) is left as it is.

    ValueError without prompts: a dataset without held-out prompts has no such figure.
    """
    if not prompts:
        raise ValueError("no held-out prompts to evaluate on")
    sampling = Sampling(max_new_tokens=task.answer_length, temperature=0.0)
    rows = [Row(prompt=prompt, sampling=sampling) for prompt in prompts]
    sample(model, rows, pad=int(model.config.pad_token_id or 0))
    return sum(task.score(row.prompt, row.tokens).exact for row in rows) / len(rows)
