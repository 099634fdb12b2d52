"""From sample records to padded tensors.

Sequences are packed left-aligned and padded on the right: under causal attention no real token sees the padding, so
neither an attention mask nor position ids are needed, and prompts of any length go into one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moerl_runtime.buffer.records import SampleGroup

MICRO_BATCH_TOKENS = 32768
"""Positions (padding included) in one forward and backward pass; bounds the memory of activations."""


@dataclass(frozen=True)
class Batch:
    """One optimizer step's samples. N samples, L the longest prompt plus response, all on CPU.

    `ids` [N, L] int64. The arrays below are aligned to *targets*: position t is about token t + 1, so they are
    [N, L - 1]. `mask` is 1.0 on tokens to train, `mu` the rollout's log-probability (0 elsewhere), `versions` the
    policy version of each trained token (-1 elsewhere). `reward` [N], `group` [N], `usable` [N] bool.
    """

    ids: Tensor
    mask: Tensor
    mu: Tensor
    versions: Tensor
    reward: Tensor
    group: Tensor
    usable: Tensor
    first: int
    """Every target before this position belongs to a prompt: logits are not needed there."""

    @property
    def size(self) -> int:
        """Samples."""
        return self.ids.shape[0]

    @property
    def tokens(self) -> float:
        """Trained tokens."""
        return float(self.mask.sum())

    def micro_batches(self, positions: int = MICRO_BATCH_TOKENS) -> Iterator[slice]:
        """Row ranges of at most `positions` positions each, at least one row."""
        rows = max(1, positions // self.ids.shape[1])
        return (slice(at, min(at + rows, self.size)) for at in range(0, self.size, rows))


def build(groups: Sequence[SampleGroup], *, pad: int) -> Batch:
    """Tensors of the groups, in their order; unusable samples keep their row with a zero mask."""
    samples = [(group, sample) for group in groups for sample in group.samples]
    length = max(len(group.prompt_ids) + len(sample.output_ids) for group, sample in samples)
    ids = torch.full((len(samples), length), pad, dtype=torch.int64)
    mask = torch.zeros(len(samples), length - 1)
    mu = torch.zeros(len(samples), length - 1)
    versions = torch.full((len(samples), length - 1), -1, dtype=torch.int64)
    for row, (group, sample) in enumerate(samples):
        prompt, answer = len(group.prompt_ids), len(sample.output_ids)
        ids[row, :prompt] = torch.tensor(group.prompt_ids, dtype=torch.int64)
        if not answer:
            continue
        ids[row, prompt : prompt + answer] = torch.tensor(sample.output_ids, dtype=torch.int64)
        if not sample.usable:
            continue
        target = slice(prompt - 1, prompt - 1 + answer)
        chosen = torch.tensor(sample.mask, dtype=torch.float32)
        mask[row, target] = chosen
        mu[row, target] = torch.tensor(sample.logprobs, dtype=torch.float32) * chosen
        versions[row, target] = torch.where(chosen > 0, torch.tensor(sample.versions, dtype=torch.int64), -1)
    return Batch(
        ids=ids,
        mask=mask,
        mu=mu,
        versions=versions,
        reward=torch.tensor([sample.reward for _, sample in samples], dtype=torch.float32),
        group=torch.tensor([at for at, group in enumerate(groups) for _ in group.samples], dtype=torch.int64),
        usable=torch.tensor([sample.usable for _, sample in samples]),
        first=min(len(group.prompt_ids) for group in groups) - 1,
    )
