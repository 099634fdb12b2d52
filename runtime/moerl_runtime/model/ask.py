"""Asks model folders held-out prompts, greedily: `python -m moerl_runtime.model.ask --model DIR --dataset URI`.

One JSON object a line for each model, so that a caller without torch can judge a policy; several models are
asked in one process, since importing torch takes longer than the questions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.rollout.engine_sampler import Row, Sampling, sample
from moerl_runtime.tasks import task as tasks
from moerl_runtime.tasks.task import Task

from .tiny import load_folder

_EXAMPLES = 8


def ask(model: PreTrainedModel, task: Task, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Number of prompts, exact match and mean reward, and the first few answers as token ids."""
    sampling = Sampling(max_new_tokens=task.answer_length, temperature=0.0)
    rows = [Row(prompt=prompt, sampling=sampling) for prompt in prompts]
    sample(model, rows, pad=int(model.config.pad_token_id or 0))
    scores = [task.score(row.prompt, row.tokens) for row in rows]
    return {
        "prompts": len(rows),
        "exactMatch": sum(score.exact for score in scores) / len(rows),
        "reward": sum(score.reward for score in scores) / len(rows),
        "examples": [
            {"prompt": list(row.prompt), "answer": row.tokens, "correct": score.exact}
            for row, score in list(zip(rows, scores, strict=True))[:_EXAMPLES]
        ],
    }


def main(argv: list[str] | None = None) -> int:
    """One line of JSON a model, in the order given."""
    parser = argparse.ArgumentParser(prog="python -m moerl_runtime.model.ask", description=__doc__)
    parser.add_argument("--model", action="append", required=True, type=Path, help="Hugging Face folder; repeatable")
    parser.add_argument("--dataset", required=True, help="the task whose held-out prompts are asked")
    parser.add_argument("--prompts", type=int, default=512)
    arguments = parser.parse_args(argv)
    try:
        task = tasks.load(arguments.dataset, seed=0)
        heldout = task.heldout(arguments.prompts)
        if not heldout:
            raise tasks.TaskError(f"{arguments.dataset} holds out no prompts")
        for folder in arguments.model:
            print(json.dumps({"model": str(folder), **ask(load_folder(folder), task, heldout)}))
    except (tasks.TaskError, OSError, ValueError) as error:
        print(f"ask: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
