"""One GRPO update of a model on a batch: forward, loss, backward, clip, step. Blocking; runs in the torch thread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from .batch import MICRO_BATCH_TOKENS, Batch
from .collective import global_sum
from .loss import LossSettings, group_advantages, policy_sums, token_statistics


@dataclass(frozen=True)
class UpdateStats:
    """What an update says about itself; fractions are of trained tokens."""

    loss: float
    reward: float
    tokens: int
    samples: int
    zero_variance_groups: int
    gradient_norm: float
    entropy: float
    clip_fraction: float
    cap_fraction: float
    mismatch_kl: float
    worst_gap: float


def make_optimizer(model: PreTrainedModel, *, learning_rate: float) -> torch.optim.AdamW:
    """AdamW(0.9, 0.95) without weight decay: the measured setting."""
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    settings: LossSettings,
    temperature: float,
    gradient_clip: float,
    micro_batch_tokens: int = MICRO_BATCH_TOKENS,
) -> UpdateStats:
    """One optimizer step. The gradient is that of the sum over all tokens divided by the global token count.

    With one update a batch, pi_old is stopgrad(pi_theta) (see `policy_sums`), so no second forward pass is made. A
    batch without any trained token leaves the weights alone.
    """
    advantages = group_advantages(batch.reward, batch.group, batch.usable)
    count = global_sum(batch.tokens)
    totals = dict.fromkeys(("loss", "clipped", "capped", "entropy", "mismatch"), 0.0)
    worst = 0.0
    optimizer.zero_grad(set_to_none=True)
    for rows in batch.micro_batches(micro_batch_tokens) if count else ():
        logp, entropy = forward(model, batch, rows, temperature=temperature)
        sums = policy_sums(
            logp,
            entropy,
            mu=batch.mu[rows, batch.first :],
            old=None,
            advantages=advantages.values[rows],
            mask=batch.mask[rows, batch.first :],
            settings=settings,
        )
        (sums.objective / count).backward()  # type: ignore[no-untyped-call]
        totals["loss"] += float(sums.objective.detach()) / count
        for name in ("clipped", "capped", "entropy", "mismatch"):
            totals[name] += getattr(sums, name) / count
        worst = max(worst, sums.worst_gap)
    norm = 0.0
    if count:
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clip))
        optimizer.step()
    used = batch.reward[batch.usable]
    return UpdateStats(
        loss=totals["loss"],
        reward=float(used.mean()) if used.numel() else 0.0,
        tokens=int(count),
        samples=int(batch.usable.sum()),
        zero_variance_groups=advantages.zero_variance_groups,
        gradient_norm=norm,
        entropy=totals["entropy"],
        clip_fraction=totals["clipped"],
        cap_fraction=totals["capped"],
        mismatch_kl=totals["mismatch"],
        worst_gap=worst,
    )


def forward(model: PreTrainedModel, batch: Batch, rows: slice, *, temperature: float) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy) of the targets from `batch.first` on, each [rows, L - 1 - first]."""
    ids = batch.ids[rows]
    logits = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=ids.shape[1] - 1 - batch.first).logits
    return token_statistics(logits, ids[:, batch.first + 1 :], temperature=temperature)
