"""The batched sampler: log-probabilities of the sampled distribution, unequal prompts, stops and aborts."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_utils import PreTrainedModel

from moerl_runtime.model.tiny import build_tiny
from moerl_runtime.rollout.engine_sampler import Row, Sampling, sample

pytestmark = pytest.mark.torch

PROMPTS = [[1, 4, 5, 6, 2], [1, 7, 2], [1, 4, 5, 6, 2], [1, 8, 9, 10, 11, 4, 2]]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return build_tiny(vocab_size=12, pad=0, bos=1, eos=3, seed=1).eval()


def full_logits(model: PreTrainedModel, row: Row) -> torch.Tensor:
    """Logits before each generated token, from one uncached pass over the unpadded sequence."""
    ids = torch.tensor([[*row.prompt, *row.tokens]])
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits[len(row.prompt) - 1 : -1]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_logprobs_are_those_of_the_sampled_distribution(model: PreTrainedModel, temperature: float) -> None:
    rows = [Row(p, Sampling(max_new_tokens=6 + i % 2, temperature=temperature)) for i, p in enumerate(PROMPTS * 4)]
    sample(model, rows, pad=0, generator=torch.Generator().manual_seed(0))
    for row in rows:
        wanted = torch.log_softmax(full_logits(model, row) / temperature, -1)
        got = torch.tensor(row.logprobs)
        torch.testing.assert_close(got, wanted.gather(-1, torch.tensor(row.tokens)[:, None])[:, 0], atol=2e-5, rtol=0)
        assert len(row.tokens) == row.sampling.max_new_tokens
        assert row.finish == "length"


def test_nucleus_renormalises_and_never_leaves_the_nucleus(model: PreTrainedModel) -> None:
    rows = [Row(PROMPTS[0], Sampling(max_new_tokens=3, top_p=0.5)) for _ in range(64)]
    sample(model, rows, pad=0, generator=torch.Generator().manual_seed(0))
    for row in rows:
        for logits, token, logp in zip(full_logits(model, row), row.tokens, row.logprobs, strict=True):
            probabilities, order = torch.softmax(logits, -1).sort(descending=True)
            size = int((probabilities.cumsum(0) - probabilities < 0.5).sum())
            nucleus = order[:size].tolist()
            assert token in nucleus
            wanted = probabilities[nucleus.index(token)] / probabilities[:size].sum()
            assert logp == pytest.approx(float(wanted.log()), abs=2e-5)


def test_frequencies_follow_the_distribution(model: PreTrainedModel) -> None:
    count = 8000
    rows = [Row(PROMPTS[1], Sampling(max_new_tokens=1)) for _ in range(count)]
    sample(model, rows, pad=0, generator=torch.Generator().manual_seed(7))
    wanted = torch.softmax(full_logits(model, rows[0])[0], -1)
    seen = torch.bincount(torch.tensor([row.tokens[0] for row in rows]), minlength=12) / count
    assert float((seen - wanted).abs().max()) < 5 * (0.25 / count) ** 0.5


def test_greedy_takes_the_best_token_and_batching_changes_nothing(model: PreTrainedModel) -> None:
    together = [Row(p, Sampling(max_new_tokens=5, temperature=0.0)) for p in PROMPTS]
    sample(model, together, pad=0)
    for row in together:
        alone = Row(row.prompt, row.sampling)
        sample(model, [alone], pad=0)
        assert alone.tokens == row.tokens == full_logits(model, row).argmax(-1).tolist()


def test_a_stop_token_ends_its_own_row_and_is_kept(model: PreTrainedModel) -> None:
    rows = [
        Row(PROMPTS[i % 4], Sampling(max_new_tokens=12, stop_tokens=frozenset([3, 5]), temperature=1.5))
        for i in range(64)
    ]
    sample(model, rows, pad=0, generator=torch.Generator().manual_seed(3))
    assert {row.finish for row in rows} == {"stop", "length"}
    for row in rows:
        assert not {3, 5} & set(row.tokens[:-1])
        assert (row.tokens[-1] in (3, 5)) == (row.finish == "stop")
        assert len(row.tokens) == len(row.logprobs)
        wanted = torch.log_softmax(full_logits(model, row) / 1.5, -1).gather(-1, torch.tensor(row.tokens)[:, None])
        torch.testing.assert_close(torch.tensor(row.logprobs), wanted[:, 0], atol=2e-5, rtol=0)


def test_a_cancelled_row_keeps_its_tokens_and_the_others_go_on(model: PreTrainedModel) -> None:
    steps = 0

    def cancelled() -> bool:
        nonlocal steps
        steps += 1
        return steps >= 2

    rows = [Row(PROMPTS[0], Sampling(max_new_tokens=6), cancelled=cancelled), Row(PROMPTS[1], Sampling(6))]
    sample(model, rows, pad=0, generator=torch.Generator().manual_seed(0))
    assert (rows[0].finish, len(rows[0].tokens)) == ("abort", 2)
    assert (rows[1].finish, len(rows[1].tokens)) == ("length", 6)


def test_an_interrupted_batch_ends_between_two_tokens(model: PreTrainedModel) -> None:
    rows = [Row(p, Sampling(max_new_tokens=6)) for p in PROMPTS]
    sample(model, rows, pad=0, interrupted=lambda: True)
    assert [(row.finish, len(row.tokens)) for row in rows] == [("abort", 1)] * 4
