"""Qwen3-MoE of transformers with its experts spread over ranks computes what it computes on one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist

from moerl_kernels import EpConfig, EpGroup, create
from moerl_kernels.experts import ExpertParallelExperts, spread_experts
from support.ranks import run

pytestmark = pytest.mark.torch


def model() -> Any:
    """A small random Qwen3-MoE, the same in every process."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        intermediate_size=32, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        initializer_range=0.1, max_position_embeddings=64,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).float().train()


def step(net: Any, ids: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, this rank's share of the loss); the loss is divided by the global token count."""
    logits = net(ids).logits
    logp = logits[:, :-1].log_softmax(-1)
    chosen = logp.gather(-1, ids[:, 1:].unsqueeze(-1)) if ids.shape[0] else logp[..., :1]
    return logits, -chosen.sum() / total


def _against_one_rank(name: str, alignment: int) -> dict[str, float]:
    group = EpGroup.of()
    whole = model()
    spread = copy.deepcopy(whole)
    config = EpConfig(
        num_experts=8, top_k=2, hidden=32, max_tokens_per_rank=64, dtype=torch.float32, alignment=alignment
    )
    assert spread_experts(spread, create(name, config, group)) == 2
    torch.manual_seed(1)
    batch = torch.randint(0, 24, (6, 5))
    total = batch.shape[0] * (batch.shape[1] - 1)
    mine = batch[group.rank :: group.size]
    logits, loss = step(spread, mine, total)
    loss.backward()
    want_logits, want_loss = step(whole, batch, total)
    want_loss.backward()
    worst = {"logits": float((logits - want_logits[group.rank :: group.size]).abs().max()) if len(mine) else 0.0}
    dist.all_reduce(loss.detach_())
    worst["loss"] = float((loss - want_loss).abs())
    worst["dense"] = worst["experts"] = 0.0
    parts = dict(whole.named_parameters())
    for key, parameter in spread.named_parameters():
        want = parts[key].grad
        grad = parameter.grad
        if ".experts." in key:
            n = 8 // group.size
            want = want[group.rank * n : (group.rank + 1) * n]
            worst["experts"] = max(worst["experts"], float((grad - want).abs().max()))
        else:
            dist.all_reduce(grad)
            worst["dense"] = max(worst["dense"], float((grad - want).abs().max()))
    assert any(isinstance(m, ExpertParallelExperts) for m in spread.modules())
    return worst


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "alignment"), [("Reference", 1), ("NCCLAllToAll", 1), ("NCCLAllGather", 1), ("NCCLAllToAll", 16)]
)
def test_logits_loss_and_gradients(name: str, alignment: int, ranks: int) -> None:
    """fp32; the order of sums differs, nothing else. Expert gradients are not reduced again."""
    model()  # imports transformers once, before the fork
    for worst in run(ranks, _against_one_rank, name, alignment):
        assert worst["logits"] < 2e-5, worst
        assert worst["loss"] < 2e-6, worst
        assert worst["dense"] < 2e-5, worst
        assert worst["experts"] < 2e-5, worst
