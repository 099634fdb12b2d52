"""GRPO as pure functions of tensors: advantages, the clipped surrogate, its off-policy correction and its sums.

Notation (references/equations in the functions): mu is the rollout policy that sampled the tokens, pi_old the policy
at the start of the batch, pi_theta the policy being trained. All log-probabilities are natural logarithms of the
distribution that was *sampled* from (temperature applied). A batch is padded to [B, T]; `mask` is 1 on trained tokens
and 0 on prompt, tool and padding positions. Sums are returned, not means: the caller divides by the global token
count, so the result does not depend on how a batch is cut into micro-batches or ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Correction = Literal["decoupled", "bypass"]


@dataclass(frozen=True)
class LossSettings:
    """The objective's numbers. Defaults are the measured ones (clip-higher of DAPO, arXiv 2503.14476)."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    entropy_coefficient: float = 0.0
    correction: Correction = "decoupled"
    weight_cap: float = 2.0
    """Truncation C of the importance weight pi_old/mu (truncated importance sampling)."""
    weight_mask: tuple[float, float] | None = None
    """Instead of truncating, zero the tokens whose weight lies outside [low, high] (IcePop: 0.5, 5)."""


@dataclass(frozen=True)
class TokenSums:
    """Sums over the trained tokens of one micro-batch. `objective` carries the gradient, the rest are plain numbers."""

    objective: Tensor
    """scalar: sum of mask * (surrogate loss - entropy_coefficient * entropy)."""
    tokens: float
    clipped: float
    """tokens whose ratio the clip changed."""
    capped: float
    """tokens whose importance weight was truncated or masked."""
    entropy: float
    mismatch: float
    """sum of the k3 estimate of KL(mu || pi_theta): the health figure of trainer against engine."""
    worst_gap: float
    """largest |log pi_theta - log mu|, not a sum."""


@dataclass(frozen=True)
class Advantages:
    """Per-sample advantages and what the group statistics say about the batch."""

    values: Tensor
    """[B] float32; 0 for unusable samples and for groups without signal."""
    zero_variance_groups: int
    usable_groups: int


def group_advantages(
    rewards: Tensor,
    group: Tensor,
    usable: Tensor,
    *,
    normalise: bool = True,
    epsilon: float = 1e-6,
) -> Advantages:
    """A_i = (r_i - mean_group) / (std_group + epsilon), over the usable members of the whole group.

    rewards [B] float, group [B] int64 (any labels), usable [B] bool. The standard deviation is the unbiased one.
    Without `normalise`, A_i = r_i - mean_group (Dr.GRPO, arXiv 2503.20783). A group with fewer than two usable
    members, or with equal rewards, has no signal: its advantages are 0 and, with two members or more, it is counted.
    Failed or padded members enter neither mean nor deviation. Source: GRPO, arXiv 2402.03300.
    """
    values = torch.zeros_like(rewards)
    zero_variance = counted = 0
    for label in torch.unique(group).tolist():
        members = (group == label) & usable
        if int(members.sum()) < 2:
            continue
        counted += 1
        own = rewards[members].double()
        centred = own - own.mean()
        if bool((own == own[0]).all()):
            zero_variance += 1
            continue
        scale = own.std(unbiased=True) + epsilon if normalise else torch.ones((), dtype=own.dtype)
        values[members] = (centred / scale).to(values.dtype)
    return Advantages(values=values, zero_variance_groups=zero_variance, usable_groups=counted)


def token_statistics(logits: Tensor, targets: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(log-probability of each target [B, T], entropy [B, T]) of softmax(logits / temperature).

    logits [B, T, V] predict targets [B, T] at the same position (the caller has shifted them).
    """
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    chosen = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy


def policy_sums(
    logp: Tensor,
    entropy: Tensor,
    *,
    mu: Tensor,
    old: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    settings: LossSettings,
) -> TokenSums:
    """The surrogate's sums over one micro-batch.

    logp, entropy, mu, old, mask: [B, T]; advantages: [B]. `decoupled` (Hilton et al., arXiv 2110.00641):
    rho = pi_theta / pi_old, weight w = stopgrad(pi_old / mu), truncated at `weight_cap` or masked; the loss of a token
    is -w * min(rho A, clip(rho, 1 - low, 1 + high) A). `old=None` means one update per batch, where
    pi_old = stopgrad(pi_theta) exactly and needs no forward pass of its own. `bypass`: rho = pi_theta / mu with the
    clip around mu and no weight, since rho corrects already.
    """
    if settings.correction == "bypass":
        anchor, weight, capped = mu, torch.ones_like(logp), torch.zeros_like(logp)
    else:
        anchor = logp.detach() if old is None else old
        weight, capped = importance_weight(anchor, mu, settings)
    advantage = advantages.unsqueeze(-1)
    ratio = torch.exp(torch.where(mask > 0, logp - anchor, 0.0))
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    surrogate = torch.minimum(ratio * advantage, bounded * advantage)
    clipped = (bounded * advantage < ratio * advantage).to(mask.dtype)
    per_token = -weight * surrogate - settings.entropy_coefficient * entropy
    gap = torch.where(mask > 0, mu - logp.detach(), 0.0)
    return TokenSums(
        objective=(per_token * mask).sum(),
        tokens=float(mask.sum()),
        clipped=float((clipped * mask).sum()),
        capped=float((capped * mask).sum()),
        entropy=float((entropy.detach() * mask).sum()),
        mismatch=float(((torch.exp(-gap) - 1 + gap) * mask).sum()),
        worst_gap=float(gap.abs().max()) if gap.numel() else 0.0,
    )


def importance_weight(old: Tensor, mu: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """(w, touched), both [B, T]: stopgrad(exp(old - mu)), truncated at the cap or zeroed outside the mask's bounds."""
    raw = torch.exp(old.detach() - mu)
    if settings.weight_mask is not None:
        low, high = settings.weight_mask
        touched = (raw < low) | (raw > high)
        return raw.masked_fill(touched, 0.0), touched.to(raw.dtype)
    touched = raw > settings.weight_cap
    return raw.clamp(max=settings.weight_cap), touched.to(raw.dtype)
