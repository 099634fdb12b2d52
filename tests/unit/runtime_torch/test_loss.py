"""The objective against a straightforward double-precision reference, and the properties that it must have."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime.trainer.loss import LossSettings, group_advantages, importance_weight, policy_sums, token_statistics

pytestmark = pytest.mark.torch


def _case(*, rows: int = 6, length: int = 5, vocabulary: int = 7, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.rand(rows, length, generator=draw) < 0.7).double()
    mask[:, 0] = 1
    targets = torch.randint(0, vocabulary, (rows, length), generator=draw)
    logits = torch.randn(rows, length, vocabulary, generator=draw, dtype=torch.float64)
    logp = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
    return {
        "logits": logits,
        "targets": targets,
        "mu": (logp + 0.4 * torch.randn(rows, length, generator=draw, dtype=torch.float64)).clamp(max=-1e-3) * mask,
        "old": logp + 0.3 * torch.randn(rows, length, generator=draw, dtype=torch.float64),
        "advantages": torch.randn(rows, generator=draw, dtype=torch.float64),
        "mask": mask,
    }


def _reference(case: dict[str, torch.Tensor], options: LossSettings, *, temperature: float, use_old: bool) -> float:
    """The equations written out with loops over Python floats."""
    total = 0.0
    rows, length, _ = case["logits"].shape
    for i in range(rows):
        for t in range(length):
            if case["mask"][i, t] == 0:
                continue
            scaled = [float(x) / temperature for x in case["logits"][i, t]]
            norm = math.log(sum(math.exp(x) for x in scaled))
            logp = scaled[int(case["targets"][i, t])] - norm
            entropy = -sum((x - norm) * math.exp(x - norm) for x in scaled)
            mu, advantage = float(case["mu"][i, t]), float(case["advantages"][i])
            if options.correction == "bypass":
                anchor, weight = mu, 1.0
            else:
                anchor = float(case["old"][i, t]) if use_old else logp
                weight = math.exp(anchor - mu)
                if options.weight_mask is None:
                    weight = min(weight, options.weight_cap)
                elif not options.weight_mask[0] <= weight <= options.weight_mask[1]:
                    weight = 0.0
            ratio = math.exp(logp - anchor)
            bounded = min(max(ratio, 1 - options.clip_low), 1 + options.clip_high)
            total += -weight * min(ratio * advantage, bounded * advantage) - options.entropy_coefficient * entropy
    return total


@pytest.mark.parametrize("use_old", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "options",
    [
        LossSettings(),
        LossSettings(entropy_coefficient=0.2),
        LossSettings(correction="bypass", clip_low=0.1, clip_high=0.1),
        LossSettings(weight_cap=1.1),
        LossSettings(weight_mask=(0.5, 5.0)),
    ],
)
def test_objective_equals_the_reference(options: LossSettings, temperature: float, use_old: bool) -> None:
    case = _case()
    logp, entropy = token_statistics(case["logits"], case["targets"], temperature=temperature)
    sums = policy_sums(
        logp,
        entropy,
        mu=case["mu"],
        old=case["old"] if use_old else None,
        advantages=case["advantages"],
        mask=case["mask"],
        settings=options,
    )
    assert float(sums.objective) == pytest.approx(
        _reference(case, options, temperature=temperature, use_old=use_old), abs=1e-10
    )
    assert sums.tokens == float(case["mask"].sum())


@pytest.mark.parametrize("correction", ["decoupled", "bypass"])
def test_gradient_is_that_of_the_objective(correction: str) -> None:
    case = _case(rows=3, length=2, vocabulary=4, seed=3)
    options = LossSettings(entropy_coefficient=0.1, correction=correction, clip_low=9e-1, clip_high=50.0)  # type: ignore[arg-type]

    def objective(logits: torch.Tensor) -> torch.Tensor:
        logp, entropy = token_statistics(logits, case["targets"])
        return policy_sums(
            logp,
            entropy,
            mu=case["mu"],
            old=case["old"],
            advantages=case["advantages"],
            mask=case["mask"],
            settings=options,
        ).objective

    assert torch.autograd.gradcheck(objective, case["logits"].clone().requires_grad_())


def test_with_one_update_old_is_theta_and_the_gradient_is_weighted_reinforce() -> None:
    case = _case(seed=5)
    logits = case["logits"].clone().requires_grad_()
    logp, entropy = token_statistics(logits, case["targets"])
    common = {"mu": case["mu"], "advantages": case["advantages"], "mask": case["mask"], "settings": LossSettings()}
    implicit = torch.autograd.grad(policy_sums(logp, entropy, old=None, **common).objective, logits, retain_graph=True)
    explicit = torch.autograd.grad(
        policy_sums(logp, entropy, old=logp.detach(), **common).objective, logits, retain_graph=True
    )
    weight = torch.exp(logp.detach() - case["mu"]).clamp(max=2.0)
    plain = torch.autograd.grad(-(weight * logp * case["advantages"][:, None] * case["mask"]).sum(), logits)
    assert torch.equal(implicit[0], explicit[0])
    torch.testing.assert_close(implicit[0], plain[0], rtol=1e-12, atol=1e-12)


def test_no_gradient_flows_through_the_importance_weight() -> None:
    old = torch.tensor([[0.1]], requires_grad=True)
    weight, _ = importance_weight(old, torch.tensor([[0.0]]), LossSettings())
    assert not weight.requires_grad


@given(
    rewards=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16),
    lost=st.integers(0, 3),
    normalise=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_advantages_equal_the_reference_and_ignore_lost_members(
    rewards: list[float], lost: int, normalise: bool
) -> None:
    values = torch.tensor([*rewards, *([123.0] * lost)])
    usable = torch.tensor([True] * len(rewards) + [False] * lost)
    result = group_advantages(values, torch.zeros(len(values), dtype=torch.int64), usable, normalise=normalise)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    same = len(set(rewards)) == 1
    for at, reward in enumerate(rewards):
        wanted = 0.0 if same else (reward - mean) / ((deviation + 1e-6) if normalise else 1.0)
        assert float(result.values[at]) == pytest.approx(wanted, abs=1e-4)
    assert not result.values[len(rewards) :].any()
    assert result.zero_variance_groups == int(same)


def test_a_group_with_one_usable_member_has_no_signal() -> None:
    result = group_advantages(
        torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]), torch.tensor([True, False, True, True])
    )
    assert result.values[:2].tolist() == [0.0, 0.0]
    assert result.values[2] > 0 > result.values[3]
    assert result.usable_groups == 1


def test_groups_do_not_mix_and_their_order_does_not_matter() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.25, 0.0, 0.0])
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    usable = torch.ones(6, dtype=torch.bool)
    order = torch.tensor([4, 1, 3, 0, 5, 2])
    straight = group_advantages(rewards, group, usable)
    mixed = group_advantages(rewards[order], group[order], usable)
    assert torch.equal(straight.values[order], mixed.values)
    assert straight.zero_variance_groups == mixed.zero_variance_groups == 1
