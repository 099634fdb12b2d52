"""The part of docs/benchmarks.md about rollouts over expert-parallel backends, from the raw figures of the run."""

from __future__ import annotations

import statistics
from typing import Any

Figures = dict[str, Any]
AIMED_AT = 1.4  # times NCCLAllToAll
MODES = {
    "exact": "sizes read on the host in every layer",
    "static": "no host sync",
    "graph": "no host sync, a step in a CUDA graph",
}


def section(found: Figures, *, raw: str) -> str:
    """The section, with `raw` as the address of the raw figures."""
    shape = found["shape"]
    speed = {way: found["tokens"] / statistics.median(values) for way, values in found["seconds"].items()}
    names = list(dict.fromkeys(way.split()[0] for way in speed))
    lines = [
        "## A rollout on two H200s",
        "",
        f"Greedy decoding of a Qwen3-MoE with random weights ({shape['layers']} layers, hidden {shape['hidden']}, top-"
        f"{shape['top_k']} of {shape['experts']} experts of width {shape['expert_width']}, bf16) on {found['gpus']}, "
        f"{shape['sequences']} sequences a GPU, {shape['new']} new tokens, experts spread over the GPUs; torch "
        f"{found['torch']}, {len(next(iter(found['seconds'].values())))} interleaved runs after one to warm up, by "
        f"`python -m moerl_bench.expert_parallel_rollout` ([{raw}]({raw})). The decode step is the same for all; only "
        "dispatch and combine differ.",
        "",
        "| tokens/s of both GPUs (spread) | " + " | ".join(f"{mode}: {what}" for mode, what in MODES.items()) + " |",
        "|---" * (len(MODES) + 1) + "|",
    ]
    for name in names:
        cells = [_cell(speed[f"{name} {mode}"], found["seconds"][f"{name} {mode}"]) for mode in MODES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| what brings how much | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for label, after, before in (("no host sync", "static", "exact"), ("the graph", "graph", "static")):
        ratios = [f"x {speed[f'{name} {after}'] / speed[f'{name} {before}']:.2f}" for name in names]
        lines.append(f"| {label} | " + " | ".join(ratios) + " |")
    ratios = [f"x {speed[f'{name} graph'] / speed['NCCLAllToAll graph']:.2f}" for name in names]
    lines.append("| the kernels, over NCCLAllToAll in a graph | " + " | ".join(ratios) + " |")
    gain = speed["NVLink graph"] / speed["NCCLAllToAll graph"]
    verdict = "reached" if gain >= AIMED_AT else "not reached"
    off = found["off"].values()
    lines += [
        "",
        f"Aimed at: {AIMED_AT} times NCCLAllToAll, both in a graph; {verdict}. NCCLAllToAll is this package's backend "
        "with static sizes, which sends its whole capacity, not the fastest that NCCL allows. Log-probabilities of the "
        "generated tokens differ from those of transformers' forward pass on the same sequences (teacher forcing) by "
        f"{min(off):.4f} to {max(off):.4f} a token on average over the backends, which is bf16's rounding.",
        "",
    ]
    return "\n".join(lines)


def _cell(speed: float, seconds: list[float]) -> str:
    return f"{speed:.0f} ({(max(seconds) - min(seconds)) / statistics.median(seconds):.0%})"
