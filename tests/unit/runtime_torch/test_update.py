"""Batches and one optimizer step: alignment, padding, and independence of how a batch is cut."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.buffer.records import Sample, SampleGroup, token_ids
from moerl_runtime.model.tiny import build_tiny
from moerl_runtime.trainer.batch import Batch, build
from moerl_runtime.trainer.loss import LossSettings
from moerl_runtime.trainer.update import UpdateStats, forward, make_optimizer, update

pytestmark = pytest.mark.torch


def group(uid: int, prompt: list[int], answers: list[list[int]], *, unusable: int | None = None) -> SampleGroup:
    samples = tuple(
        Sample.build(
            index=at,
            output_ids=answer,
            logprobs=[-1.5 - 0.1 * at] * len(answer),
            versions=[3] * len(answer),
            reward=float(at % 3) / 2,
            usable=at != unusable,
        )
        for at, answer in enumerate(answers)
    )
    return SampleGroup(uid=uid, epoch=1, worker="w", prompt_index=uid, prompt_ids=token_ids(prompt), samples=samples)


GROUPS = [
    group(1, [1, 5, 6, 2], [[7, 8], [7, 9, 4], [8], [5, 5, 5]]),
    group(2, [1, 4, 2], [[9, 10, 11, 4], [6], [7, 7], [8, 8]], unusable=1),
]


@pytest.fixture
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=0)


def run(model: PreTrainedModel, batch: Batch, *, micro_batch_tokens: int) -> tuple[PreTrainedModel, UpdateStats]:
    own = copy.deepcopy(model)
    stats = update(
        own,
        make_optimizer(own, learning_rate=1e-2),
        batch,
        settings=LossSettings(entropy_coefficient=0.1),
        temperature=1.0,
        gradient_clip=1.0,
        micro_batch_tokens=micro_batch_tokens,
    )
    return own, stats


def test_targets_are_aligned_to_the_tokens_that_they_predict() -> None:
    batch = build(GROUPS, pad=0)
    assert batch.ids[0].tolist() == [1, 5, 6, 2, 7, 8, 0]
    assert batch.mask[0].tolist() == [0, 0, 0, 1, 1, 0]
    assert batch.mask[4].tolist() == [0, 0, 1, 1, 1, 1]
    assert batch.mask[5].tolist() == [0] * 6, "an unusable member trains nothing"
    assert batch.versions[0].tolist() == [-1, -1, -1, 3, 3, -1]
    assert batch.first == 2
    assert batch.tokens == 2 + 3 + 1 + 3 + 4 + 2 + 2


def test_log_probabilities_are_those_of_each_sequence_alone(model: PreTrainedModel) -> None:
    batch = build(GROUPS, pad=0)
    logp, _ = forward(model, batch, slice(0, batch.size), temperature=0.7)
    for row, (one, sample) in enumerate((g, s) for g in GROUPS for s in g.samples):
        ids = torch.tensor([[*one.prompt_ids, *sample.output_ids]])
        alone = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0] / 0.7, -1)
        for at, token in enumerate(sample.output_ids):
            position = len(one.prompt_ids) - 1 + at
            assert float(logp[row, position - batch.first].detach()) == pytest.approx(
                float(alone[position, token].detach()), abs=2e-6
            )


@pytest.mark.parametrize("micro_batch_tokens", [1, 14, 21])
def test_an_update_does_not_depend_on_the_micro_batch_split(model: PreTrainedModel, micro_batch_tokens: int) -> None:
    batch = build(GROUPS, pad=0)
    whole, one = run(model, batch, micro_batch_tokens=10**6)
    cut, many = run(model, batch, micro_batch_tokens=micro_batch_tokens)
    assert many.loss == pytest.approx(one.loss, abs=1e-6)
    assert many.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)
    assert many.mismatch_kl == pytest.approx(one.mismatch_kl, abs=1e-6)
    before = dict(model.named_parameters())
    for (name, a), b in zip(whole.named_parameters(), cut.parameters(), strict=True):
        assert not torch.equal(a, before[name]) or not a.requires_grad or "experts" in name
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4)  # one Adam step of 1e-2 amplifies rounding


def test_gradients_do_not_depend_on_padding(model: PreTrainedModel) -> None:
    batch = build(GROUPS, pad=0)
    wide = Batch(
        ids=torch.nn.functional.pad(batch.ids, (0, 9)),
        mask=torch.nn.functional.pad(batch.mask, (0, 9)),
        mu=torch.nn.functional.pad(batch.mu, (0, 9)),
        versions=torch.nn.functional.pad(batch.versions, (0, 9), value=-1),
        reward=batch.reward,
        group=batch.group,
        usable=batch.usable,
        first=batch.first,
    )
    _, narrow = run(model, batch, micro_batch_tokens=10**6)
    _, padded = run(model, wide, micro_batch_tokens=10**6)
    assert padded.loss == pytest.approx(narrow.loss, abs=1e-6)
    assert padded.gradient_norm == pytest.approx(narrow.gradient_norm, rel=1e-5)
    assert padded.tokens == narrow.tokens


def test_a_batch_without_signal_still_counts_and_one_without_tokens_moves_nothing(model: PreTrainedModel) -> None:
    flat = [
        SampleGroup(
            uid=1,
            epoch=1,
            worker="w",
            prompt_index=1,
            prompt_ids=token_ids([1, 4, 2]),
            samples=tuple(
                Sample.build(index=at, output_ids=[5], logprobs=[-1.0], versions=[1], reward=1.0, usable=usable)
                for at in range(3)
            ),
        )
        for usable in (True, False)
    ]
    _, stats = run(model, build(flat[:1], pad=0), micro_batch_tokens=10**6)
    assert stats.zero_variance_groups == 1
    moved, stats = run(model, build(flat[1:], pad=0), micro_batch_tokens=10**6)
    assert stats.tokens == 0
    assert all(torch.equal(a, b) for a, b in zip(moved.parameters(), model.parameters(), strict=True))
