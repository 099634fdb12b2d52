"""The trainer's learning in one process, without buffer, HTTP or other processes: for finding and pinning settings.

Uses the product's own sampler, records, batches, loss and evaluation. The policy that samples a batch is exactly
`max_staleness_versions` versions old, which is the worst that a real run admits.
"""

from __future__ import annotations

import argparse
import itertools
from collections import deque
from collections.abc import Iterator

import torch
from transformers.modeling_utils import PreTrainedModel

from moerl_operator.api.job import Algorithm
from moerl_runtime.buffer.records import Sample, SampleGroup, token_ids
from moerl_runtime.model.tiny import build_tiny
from moerl_runtime.model.warmstart import warm_start
from moerl_runtime.rollout.engine_sampler import Row, Sampling, sample
from moerl_runtime.tasks import task as tasks
from moerl_runtime.tasks.reverse import BOS, EOS, PAD
from moerl_runtime.tasks.task import Task
from moerl_runtime.trainer.learner import Learner
from moerl_runtime.trainer.update import UpdateStats


def rehearse(
    model: PreTrainedModel, algorithm: Algorithm, task: Task
) -> Iterator[tuple[int, UpdateStats, float | None]]:
    """Yields (iteration, statistics, exact match on evaluated iterations)."""
    learner = Learner(model, algorithm, task)
    cursors = itertools.count()
    generator = torch.Generator().manual_seed(algorithm.seed)
    ahead: deque[list[SampleGroup]] = deque()
    for step in range(1, algorithm.iterations + 1):
        while len(ahead) <= algorithm.max_staleness_versions:
            ahead.append(_rollout(model, algorithm, task, cursors, version=step - 1, generator=generator))
        stats, _ = learner.train(ahead.popleft(), step=step, version=step - 1)
        exact = learner.exact_match() if step % algorithm.evaluate_every_iterations == 0 else None
        yield step, stats, exact


def _rollout(
    model: PreTrainedModel,
    algorithm: Algorithm,
    task: Task,
    cursors: Iterator[int],
    *,
    version: int,
    generator: torch.Generator,
) -> list[SampleGroup]:
    taken = list(itertools.islice(cursors, algorithm.prompts_per_iteration))
    prompts = [task.prompt(cursor) for cursor in taken]
    sampling = Sampling(max_new_tokens=algorithm.max_new_tokens, temperature=float(algorithm.temperature))
    rows = [[Row(prompt=prompt, sampling=sampling) for _ in range(algorithm.group_size)] for prompt in prompts]
    sample(model, [row for group in rows for row in group], pad=PAD, generator=generator)
    return [
        SampleGroup(
            uid=cursor + 1,
            epoch=1,
            worker="rehearsal",
            prompt_index=cursor,
            prompt_ids=token_ids(prompt),
            samples=tuple(
                Sample.build(
                    index=at,
                    output_ids=row.tokens,
                    logprobs=row.logprobs,
                    versions=[version] * len(row.tokens),
                    reward=task.score(prompt, row.tokens).reward,
                )
                for at, row in enumerate(group)
            ),
        )
        for cursor, prompt, group in zip(taken, prompts, rows, strict=True)
    ]


def main() -> None:
    """Print a run: `python -m support.rehearsal --seed 1 learningRate=1e-3 entropyBonus=0.1` (from tests/)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="start from random weights, not from a warm start")
    parser.add_argument("--until", type=float, default=2.0, help="stop at this exact match")
    parser.add_argument("settings", nargs="*", help="fields of spec.algorithm")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fields = {"iterations": "350", "maxNewTokens": "4", "seed": str(arguments.seed)}
    fields |= dict(one.split("=", 1) for one in arguments.settings)
    algorithm = Algorithm.model_validate(
        {k: v if not v.isdigit() else int(v) for k, v in fields.items()}
        | {k: v for k, v in fields.items() if k in ("learningRate", "entropyBonus", "temperature", "gradientClip")}
    )
    task = tasks.load("builtin://reverse-4", seed=arguments.seed)
    if arguments.random:
        model = build_tiny(vocab_size=task.vocabulary_size, pad=PAD, bos=BOS, eos=EOS, seed=arguments.seed)
    else:
        model, exact, steps = warm_start(task, seed=arguments.seed)
        print(f"warm start: {exact:.3f} after {steps} steps", flush=True)
    for step, stats, value in rehearse(model, algorithm, task):
        if value is not None:
            print(
                f"{step} exact {value:.3f} reward {stats.reward:.3f} entropy {stats.entropy:.3f} "
                f"kl {stats.mismatch_kl:.1e} grad {stats.gradient_norm:.2f} no-signal {stats.zero_variance_groups}",
                flush=True,
            )
            if value >= arguments.until:
                break


if __name__ == "__main__":
    main()
