"""What a rollout gains from an expert-parallel backend: tokens per second of a Qwen3-MoE with its experts spread.

One process per GPU of this host (`python -m moerl_bench.expert_parallel_rollout --json FILE`). Every rank decodes its
own sequences greedily; experts are spread, everything else is on every rank, as rollout engines have it. The decode
step is the same for all backends and modes, so what differs is dispatch, combine and what they allow:

    exact    sizes are read on the host in every layer (what training does)
    static   no host sync: the launches of a step run ahead
    graph    static, one step captured into a CUDA graph

static / exact is what the host sync costs, graph / static what the launches cost, and one backend's graph over
another's what the kernels bring. All must say the same: the log-probabilities of the sequences that they generated are
compared with those of transformers' own forward pass on the whole sequence (teacher forcing).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from moerl_bench import gpu_ranks
from moerl_kernels import EpBackend, EpConfig, EpGroup, create
from moerl_kernels.config import SizeMode
from moerl_kernels.experts import ExpertParallelExperts, spread_experts

BACKENDS = ("NCCLAllToAll", "NCCLAllGather", "NVLink")
WARM_UP = 3


@dataclass(frozen=True)
class Shape:
    """A Qwen3-MoE, and what is decoded with it. The default has the layers of Qwen3-30B-A3B, fewer of them."""

    hidden: int = 2048
    layers: int = 12
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    experts: int = 128
    top_k: int = 8
    expert_width: int = 768
    vocabulary: int = 32_000
    sequences: int = 64  # of each rank
    prompt: int = 16  # tokens
    new: int = 64  # tokens


def make_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> Any:
    """Random weights, the same on every rank."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(  # type: ignore[call-arg]
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        moe_intermediate_size=shape.expert_width, intermediate_size=shape.expert_width * 4, num_experts=shape.experts,
        num_experts_per_tok=shape.top_k, norm_topk_prob=True, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Qwen3MoeForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.requires_grad_(False).eval()  # type: ignore[no-untyped-call]


class Decoder:
    """One decode step of a model of transformers, on caches of fixed size and with the position on the device.

    Uses the model's own modules; only the cache differs, since a step that is captured must not allocate or read sizes.
    """

    def __init__(self, model: Any, shape: Shape) -> None:
        self.model, self.shape = model, shape
        device, dtype = model.device, model.dtype
        length = shape.prompt + shape.new
        size = (shape.layers, shape.sequences, shape.kv_heads, length, shape.head_dim)
        self.keys, self.values = (torch.zeros(size, device=device, dtype=dtype) for _ in range(2))
        self.token = torch.zeros(shape.sequences, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.places = torch.arange(length, device=device)
        self.text = torch.zeros(shape.sequences, length, dtype=torch.int64, device=device)
        self.logp = torch.zeros(shape.sequences, length, dtype=torch.float32, device=device)

    def start(self, prompts: Tensor) -> None:
        """[sequences, prompt] becomes the beginning of every sequence; nothing is cached yet."""
        self.text.zero_()
        self.text[:, : self.shape.prompt] = prompts
        self.token.copy_(prompts[:, :1])
        self.position.zero_()

    def step(self) -> None:
        """Take the token at `position`, append what follows: the prompt's next token, or the most likely one."""
        from transformers.models.qwen3_moe.modeling_qwen3_moe import apply_rotary_pos_emb

        body = self.model.model
        hidden = body.embed_tokens(self.token)
        cos, sin = body.rotary_emb(hidden, self.position.unsqueeze(0))
        seen = (self.places <= self.position)[None, None, None, :]
        for i, layer in enumerate(body.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(hidden)
            heads = (*normed.shape[:-1], -1, self.shape.head_dim)
            query = attention.q_norm(attention.q_proj(normed).view(heads)).transpose(1, 2)
            key = attention.k_norm(attention.k_proj(normed).view(heads)).transpose(1, 2)
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
            self.keys[i].index_copy_(2, self.position, key)
            self.values[i].index_copy_(2, self.position, attention.v_proj(normed).view(heads).transpose(1, 2))
            mixed = F.scaled_dot_product_attention(
                query, self.keys[i], self.values[i], attn_mask=seen, scale=attention.scaling, enable_gqa=True
            )
            hidden = hidden + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            normed = layer.post_attention_layernorm(hidden)
            _, weights, chosen = layer.mlp.gate(normed.flatten(0, 1))
            hidden = hidden + layer.mlp.experts(normed.flatten(0, 1), chosen, weights).view_as(hidden)
        logits = self.model.lm_head(body.norm(hidden))[:, 0].float()
        following = (self.position + 1).clamp(max=self.places.numel() - 1)
        given = self.text.index_select(1, following)
        best = logits.argmax(-1, keepdim=True)
        self.token.copy_(torch.where(following < self.shape.prompt, given, best))
        self.text.index_copy_(1, following, self.token)
        self.logp.index_copy_(1, following, logits.log_softmax(-1).gather(1, self.token))
        self.position.add_(1)

    def generate(self, prompts: Tensor, run: Callable[[], None]) -> float:
        """Seconds of the steps that made new tokens."""
        self.start(prompts)
        for _ in range(self.shape.prompt - 1):
            run()
        _settle(prompts.device)
        began = time.perf_counter()
        for _ in range(self.shape.new):
            run()
        _settle(prompts.device)
        return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if dist.is_initialized():
        dist.barrier()


def captured(decoder: Decoder, prompts: Tensor) -> Callable[[], None]:
    """One step as a CUDA graph."""
    decoder.start(prompts)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    decoder.start(prompts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step()
    return graph.replay


def teacher_forced(model: Any, text: Tensor, prompt: int) -> Tensor:
    """Log-probabilities [sequences, new] of the generated tokens by transformers' own forward pass."""
    parts = []
    for piece in torch.split(text, 16):
        logp = model(piece, use_cache=False).logits[:, prompt - 1 : -1].float().log_softmax(-1)
        parts.append(logp.gather(-1, piece[:, prompt:].unsqueeze(-1)).squeeze(-1))
    return torch.cat(parts)


def attach(model: Any, backend: EpBackend) -> None:
    """The model's experts go through `backend` from now on; the weights stay where they are."""
    for module in model.modules():
        if isinstance(module, ExpertParallelExperts):
            module.backend = backend


def prompts_of(shape: Shape, rank: int, device: torch.device) -> Tensor:
    """[sequences, prompt] random tokens, others on every rank."""
    generator = torch.Generator(device=device).manual_seed(rank + 1)
    size = (shape.sequences, shape.prompt)
    return torch.randint(0, shape.vocabulary, size, generator=generator, device=device)


def compare(shape: Shape, group: EpGroup, *, names: tuple[str, ...], repetitions: int, graphs: bool) -> dict[str, Any]:
    """Seconds of `new` steps of each backend and mode, interleaved; and how far log-probabilities are off.

    Off is the mean absolute difference per token from transformers' forward pass over NCCLAllToAll's exact path.
    """
    dtype = torch.bfloat16 if group.device.type == "cuda" else torch.float32
    model = make_model(shape, group.device, dtype)

    def backend(name: str, mode: SizeMode, tokens: int) -> EpBackend:
        return create(name, _config(shape, mode, tokens, dtype), group)

    judge = backend("NCCLAllToAll", "exact", 16 * (shape.prompt + shape.new))
    spread_experts(model, judge)
    if group.device.type == "cuda":
        torch.cuda.empty_cache()
    prompts = prompts_of(shape, group.rank, group.device)
    decoder = Decoder(model, shape)
    ways: dict[str, tuple[EpBackend, Callable[[], None]]] = {}
    for name in names:
        for mode in ("exact", "static"):
            ways[f"{name} {mode}"] = (backend(name, mode, shape.sequences), decoder.step)
        if graphs:
            static = ways[f"{name} static"][0]
            attach(model, static)
            ways[f"{name} graph"] = (static, captured(decoder, prompts))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    off: dict[str, float] = {}
    for turn in range(1 + repetitions):
        for way, (used, run) in ways.items():
            attach(model, used)
            took = decoder.generate(prompts, run)
            used.check()
            if turn:
                seconds[way].append(took)
                continue
            attach(model, judge)
            want = teacher_forced(model, decoder.text, shape.prompt)
            off[way] = float((decoder.logp[:, shape.prompt :] - want).abs().mean())
    return {"seconds": seconds, "off": off, "tokens": shape.sequences * shape.new * group.size}


def _config(shape: Shape, mode: SizeMode, tokens: int, dtype: torch.dtype) -> EpConfig:
    return EpConfig(
        num_experts=shape.experts, top_k=shape.top_k, hidden=shape.hidden, max_tokens_per_rank=tokens, dtype=dtype,
        size_mode=mode,
    )  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """For people: tokens per second of all ranks, and what each thing brings."""
    speed = {way: found["tokens"] / statistics.median(values) for way, values in found["seconds"].items()}
    base = speed.get("NCCLAllToAll exact")
    lines = [f"{'':24} {'tokens/s':>10} {'spread':>8} {'x A2A exact':>12} {'log p off':>10}"]
    for way, value in speed.items():
        times = found["seconds"][way]
        spread = (max(times) - min(times)) / statistics.median(times)
        ratio = f"{value / base:12.2f}" if base else f"{'':12}"
        lines.append(f"{way:24} {value:10.0f} {spread:8.1%} {ratio} {found['off'][way]:10.4f}")
    for name in dict.fromkeys(way.split()[0] for way in speed):
        if f"{name} graph" in speed:
            sync, graph = (
                speed[f"{name} {a}"] / speed[f"{name} {b}"] for a, b in (("static", "exact"), ("graph", "static"))
            )
            lines.append(f"{name}: no host sync x {sync:.2f}, graph x {graph:.2f}")
    if "NVLink graph" in speed and "NCCLAllToAll graph" in speed:
        lines.append(
            f"kernels: NVLink / NCCLAllToAll in a graph x {speed['NVLink graph'] / speed['NCCLAllToAll graph']:.2f}"
        )
    return "\n".join(lines)


def work(rank: int, size: int, options: argparse.Namespace) -> None:
    """One rank; rank 0 prints and writes."""
    device = gpu_ranks.join(rank, size, options.port)
    shape = Shape(sequences=options.sequences, layers=options.layers)
    with torch.inference_mode():
        found = compare(shape, EpGroup.of(device=device), names=BACKENDS, repetitions=options.repetitions, graphs=True)
    if rank == 0:
        found |= {"gpus": f"{size} x {torch.cuda.get_device_name()}", "torch": torch.__version__, "shape": vars(shape)}
        print(f"{found['gpus']}, {shape}\n{table(found)}", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64, help="of each rank")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", help="file for the raw figures")
    parser.add_argument("--port", type=int, default=29537)
    options = parser.parse_args()
    size = gpu_ranks.enough("expert_parallel_rollout")
    if not size:
        return 2
    return gpu_ranks.run(work, size, options)


if __name__ == "__main__":
    raise SystemExit(main())
