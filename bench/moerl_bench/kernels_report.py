"""The part of docs/benchmarks.md about expert parallelism, from the raw figures of moerl_bench.expert_parallel."""

from __future__ import annotations

from typing import Any

Figures = dict[str, Any]
NAMES = ("NVLink", "NCCLAllGather", "NCCLAllToAll")
TARGETS = {"fp8 dispatch": 300.0, "bf16 combine": 450.0, "128 tokens": 40.0, "expand": 166.0, "final reduce": 97.0}
COPY_TARGET = 0.85


def section(two: Figures, one: Figures, *, raw: str) -> str:
    """The section, with `raw` as the folder of the raw figures. two: of two GPUs; one: of one."""
    parts: list[str] = [
        "## Expert parallelism on two H200s",
        "",
        f"{two['gpus']} joined by NVLink, torch {two['torch']}, NCCL {two['nccl']}, hidden 7168, top-8 of 256 experts, "
        f"uniform routing unless said; sources of commit {two['commit']}. Written from [{raw}]({raw}) by "
        "`moerl bench page`; the runs are `python -m "
        "moerl_bench.expert_parallel` and `python -m moerl_bench.nvlink_one_gpu`. "
        f"In the same run NCCL's send and receive moved {two['linkGBps']} GB/s each way at once, and a copy within one "
        f"GPU {two['copyGBps']:.0f} GB/s, read and written.",
        "",
        "Times are those of the whole operation on the device in µs, the maximum over the ranks of each iteration; "
        "backends take turns and every result was checked in the run. *Wire* is the rows that must leave a rank, each "
        "once per other rank, over that whole time, so it is not the speed during the transfer. Two GPUs say little "
        "about eight: with top-8 of 256 nearly every token goes to both.",
        "",
        *_large(two),
        "",
        *_small(two),
        "",
        *_protocol(two, one),
        "",
        *_stages(one),
        "",
        *_targets(two, one),
        "",
        "Not measured: DeepEP in the same run (it was not built there), the speed of the wire during the transfer "
        "alone, a copy-engine all-gather, TMA bulk copies, more than two GPUs.",
        "",
    ]
    return "\n".join(parts)


def _row(two: Figures, **wanted: Any) -> Figures:
    found: Figures = next(row for row in two["rows"] if all(row[key] == value for key, value in wanted.items()))
    return found


def _large(two: Figures) -> list[str]:
    lines = ["| tokens a rank, in a graph | backend | p50 | p90 | p99 | wire GB/s |", "|---|---|---|---|---|---|"]
    for tokens in (4096, 8192):
        for wire, operation, label in (
            ("fp8", "dispatch", "dispatch, fp8 from bf16"),
            ("same", "dispatch", "dispatch, bf16"),
            ("same", "combine", "combine, bf16"),
        ):
            row = _row(two, tokens=tokens, wire=wire, graph=True)
            for name in NAMES:
                key = f"{name} {operation}"
                t = row["times"][key]
                figures = f"{t['p50']:.0f} | {t['p90']:.0f} | {t['p99']:.0f} | {row['wireGBps'][key]:.0f}"
                lines.append(f"| {tokens}, {label} | {name} | {figures} |")
    exact = _row(two, tokens=8192, wire="same", size_mode="exact", skew=0.0)["times"]
    skewed = _row(two, tokens=8192, wire="same", size_mode="exact", skew=1.0)["times"]
    call = _row(two, tokens=8192, wire="same", size_mode="exact", skew=0.0)["call"]["NVLink dispatch"]
    said = [
        f"{name} {exact[f'{name} dispatch']['p50']:.0f} and {exact[f'{name} combine']['p50']:.0f} "
        f"({skewed[f'{name} dispatch']['p50']:.0f} and {skewed[f'{name} combine']['p50']:.0f})"
        for name in NAMES
    ]
    return [
        *lines,
        "",
        _said(f"""
            With exact sizes (one host read a dispatch, no graph), 8192 tokens, bf16, dispatch and combine; in brackets
            with popularity of expert e proportional to 1 / (1 + e): {"; ".join(said)}. Much of it is this host's time:
            NVLink's dispatch call alone took {call:.0f} µs.
        """),
    ]


def _small(two: Figures) -> list[str]:
    row = _row(two, tokens=128, wire="same", graph=True)["times"]
    lines = [
        "| 128 tokens a rank, bf16, in a graph | dispatch | combine | both, per layer of 10 in one graph |",
        "|---|---|---|---|",
    ]
    for name in NAMES:
        dispatch, combine = row[f"{name} dispatch"]["p50"], row[f"{name} combine"]["p50"]
        lines.append(f"| {name} | {dispatch:.1f} | {combine:.1f} | {two['layers'][name]['p50']:.1f} |")
    return lines


def _protocol(two: Figures, one: Figures) -> list[str]:
    stress = two["stress"][0]
    shared = ", ".join(f"{one[f'stress, {ranks} ranks'][0]['rounds']} rounds with {ranks}" for ranks in (2, 4, 8))
    apart = sum(s["different"] for s in two["stress"])
    different = sum(s["different"] for key in one if key.startswith("stress") for s in one[key])
    return [
        _said(f"""
            Stress on the two GPUs: {stress["rounds"]} rounds of a dispatch and a combine with random delays, eager
            calls, graph replays, repeated routes and receiving halves on another stream mixed, from just below the wrap
            of the epoch on: {apart} results differed. Ranks as threads of one GPU: {shared} ranks, {different}
            differed. The contract ({two["contract"][0]} dispatches against Reference on each rank), gradients,
            overflow, a rank that never launches and one that fails before it does passed on two GPUs; all but the
            gradients also with ranks that share one.
        """),
    ]


def _stages(one: Figures) -> list[str]:
    lines = [
        "| local stage on one H200, 116 programs | tokens | µs | GB/s | of a copy in the run |",
        "|---|---|---|---|---|",
    ]
    for tokens in (4096, 8192):
        for stage in one[f"figures, {tokens} tokens"]:
            lines.append(
                f"| {stage['stage']} | {tokens} | {stage['us']:.0f} | {stage['GBps']:.0f} | {stage['ofCopy']:.0%} |"
            )
    routes = ", ".join(f"{one[f'route {t} tokens, us']:.1f} µs for {t}" for t in (128, 4096, 8192))
    return [
        *lines,
        "",
        f"Placing the slots of a rank takes {routes} tokens (in a graph). Expand is from the slots of two peers to "
        "eight rows a token pair; final reduce adds two peers' rows and nothing of its own.",
    ]


def _targets(two: Figures, one: Figures) -> list[str]:
    fp8 = _row(two, tokens=8192, wire="fp8", graph=True)["times"]
    bf16 = _row(two, tokens=8192, wire="same", graph=True)["times"]
    stages = {stage["stage"]: stage for stage in one["figures, 8192 tokens"]}
    both = {n: bf16[f"{n} dispatch"]["p50"] + bf16[f"{n} combine"]["p50"] for n in NAMES}
    rows = [
        ("8192 tokens, fp8 dispatch to expert-major rows", fp8["NVLink dispatch"]["p50"], TARGETS["fp8 dispatch"]),
        ("8192 tokens, bf16 combine", bf16["NVLink combine"]["p50"], TARGETS["bf16 combine"]),
        ("128 tokens, dispatch and combine per layer", two["layers"]["NVLink"]["p50"], TARGETS["128 tokens"]),
        ("8192 tokens, expand to 65,536 fp8 rows", stages["expand fp8"]["us"], TARGETS["expand"]),
        ("8192 tokens, final reduce", stages["final reduce bf16"]["us"], TARGETS["final reduce"]),
    ]
    lines = ["| aimed at | at most, µs | measured | |", "|---|---|---|---|"]
    lines += [f"| {n} | {t:.0f} | {m:.1f} | {'reached' if m <= t else 'not reached'} |" for n, m, t in rows]
    all_to_all, all_gather = (both[name] / both["NVLink"] for name in ("NCCLAllToAll", "NCCLAllGather"))
    best = max(stage["ofCopy"] for stage in stages.values())
    return [
        *lines,
        "",
        _said(f"""
            Dispatch and combine of bf16 in a graph at 8192 tokens take NCCLAllToAll {all_to_all:.1f} and NCCLAllGather
            {all_gather:.1f} times as long as NVLink (aimed at: 3 and 1). Those two are this package's backends, with
            static sizes and torch operations around the collective, not the fastest that NCCL allows. Of the local
            stages none reaches {COPY_TARGET:.0%} of a copy; the best reaches {best:.0%}. They run one program on a
            multiprocessor, so that 16 stay free, and wait for memory as much as they move.
        """),
    ]


def _said(text: str) -> str:
    """One paragraph of one line."""
    return " ".join(text.split())
