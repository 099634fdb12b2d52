"""KV-cached batched sampling over a `transformers` causal model: the inner loop of the native engine and of evaluation.

Why not `transformers`' continuous batching: on CPU it took 0.6 s for 512 x 4 tokens where this plain loop takes about
0.1 s. Log-probabilities are those of the distribution that the token was drawn from (temperature, top-p
applied), which is what the off-policy correction of the trainer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import PreTrainedModel


@dataclass(frozen=True)
class Sampling:
    """How one sequence is drawn. `temperature` 0 means greedy, with log-probabilities at temperature 1."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_tokens: frozenset[int] = frozenset()
    """A stop token ends the sequence and is part of it (it is trained too)."""


@dataclass
class Row:
    """One sequence: the prompt (with any prefix generated before) goes in, tokens and log-probabilities come out."""

    prompt: Sequence[int]
    sampling: Sampling
    cancelled: Callable[[], bool] = field(default=lambda: False)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = "abort"
    """`stop` (a stop token), `length` (max_new_tokens) or `abort` (cancelled between two tokens)."""


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    rows: list[Row],
    *,
    pad: int,
    generator: torch.Generator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Fill `tokens`, `logprobs` and `finish` of every row, in one batch.

    `interrupted` is asked between two tokens; when it says yes, unfinished rows end as `abort` with what they have.
    Equal prompts are prefilled once. Rows of unequal length are padded on the left and masked.
    """
    for row in rows:
        if row.sampling.max_new_tokens <= 0:
            row.finish = "length"
    active = [row for row in rows if row.sampling.max_new_tokens > 0]
    if not active:
        return
    cache = DynamicCache(config=model.config)
    mask, positions, logits = _prefill(model, active, cache=cache, pad=pad)
    knobs = _Knobs.of(active)
    while True:
        chosen, logp = _draw(logits, knobs, generator)
        kept = _append(active, chosen.tolist(), logp.tolist())
        if interrupted():
            return
        kept = [i for i in kept if not active[i].cancelled()]
        if not kept:
            return
        if len(kept) < len(active):
            index = torch.tensor(kept)
            cache.batch_select_indices(index)
            active = [active[i] for i in kept]
            chosen, positions = chosen[index], positions[index]
            mask = mask[index] if mask is not None else None
            knobs = _Knobs.of(active)
        positions = positions + 1
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
        out = model(
            input_ids=chosen[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = out.logits[:, -1]


def _prefill(
    model: PreTrainedModel, rows: list[Row], *, cache: DynamicCache, pad: int
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Run the distinct prompts; returns (mask [B, T] or None when nothing is padded, last position [B], logits)."""
    distinct: dict[tuple[int, ...], int] = {}
    expand = torch.tensor([distinct.setdefault(tuple(row.prompt), len(distinct)) for row in rows])
    lengths = torch.tensor([len(prompt) for prompt in distinct])
    width = int(lengths.max())
    ids = torch.full((len(distinct), width), pad)
    for at, prompt in enumerate(distinct):
        ids[at, width - len(prompt) :] = torch.tensor(prompt)
    padded = bool((lengths != width).any())
    mask = (torch.arange(width)[None] >= (width - lengths)[:, None]).long() if padded else None
    positions = (torch.arange(width)[None] - (width - lengths)[:, None]).clamp(min=0)
    out = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
    )
    cache.batch_select_indices(expand)
    return (mask[expand] if mask is not None else None), positions[expand, -1], out.logits[expand, -1]


@dataclass(frozen=True)
class _Knobs:
    """The rows' sampling settings as tensors; None where no row uses the feature."""

    temperature: Tensor
    greedy: Tensor | None
    top_p: Tensor | None

    @classmethod
    def of(cls, rows: list[Row]) -> _Knobs:
        heat = torch.tensor([row.sampling.temperature for row in rows])
        greedy = heat <= 0
        top_p = torch.tensor([row.sampling.top_p for row in rows])
        return cls(
            temperature=torch.where(greedy, 1.0, heat)[:, None],
            greedy=greedy if bool(greedy.any()) else None,
            top_p=top_p if bool((top_p < 1).any()) else None,
        )


def _draw(logits: Tensor, knobs: _Knobs, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(token [B], its log-probability [B]) from the processed distribution of logits [B, V]."""
    scaled = logits.float() / knobs.temperature
    if knobs.top_p is not None:
        scaled = _nucleus(scaled, knobs.top_p)
    logp = torch.log_softmax(scaled, dim=-1)
    chosen = torch.multinomial(logp.exp(), 1, generator=generator).squeeze(-1)
    if knobs.greedy is not None:
        chosen = torch.where(knobs.greedy, scaled.argmax(-1), chosen)
    return chosen, logp.gather(-1, chosen[:, None]).squeeze(-1)


def _nucleus(scaled: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's smallest set of best tokens whose mass reaches top_p [B]; the best token always stays."""
    ordered, order = scaled.sort(dim=-1, descending=True)
    mass = torch.softmax(ordered, dim=-1)
    drop = (mass.cumsum(-1) - mass) >= top_p[:, None]
    drop[:, 0] = False
    return scaled.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


def _append(rows: list[Row], tokens: list[int], logprobs: list[float]) -> list[int]:
    """Append one token to every row; returns the indices of the rows that go on."""
    going: list[int] = []
    for at, row in enumerate(rows):
        row.tokens.append(tokens[at])
        row.logprobs.append(logprobs[at])
        if tokens[at] in row.sampling.stop_tokens:
            row.finish = "stop"
        elif len(row.tokens) >= row.sampling.max_new_tokens:
            row.finish = "length"
        else:
            going.append(at)
    return going
