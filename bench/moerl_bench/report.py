"""Writes docs/benchmarks.md from the raw figures; every number on that page comes through here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from moerl_bench import shapes
from moerl_bench.control_plane import totals

Figures = dict[str, Any]


def control_plane(figures: Figures, *, raw: str) -> str:
    """The page, with `raw` as the address of the raw figures."""
    machine = figures["machine"]
    where = (
        f"Machine: {machine['cores']} cores, {machine['memoryGiB']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}; Kubernetes {machine['kubernetes']} (etcd without fsync), fake nodes by kwok. "
        "Absolute times of such a machine mean little, so what is compared runs interleaved in one run and is given "
        "as a ratio. Load comes from an account that is not admin: API priority and fairness exempts admins."
    )
    parts = (
        ("# Benchmarks", [_origin(figures, raw), "", where]),
        ("## One job of 48 nodes: from create to 48 running pods", _race(figures)),
        ("## Writes to the API server by one such job", _writes(figures)),
        ("## At rest", _rest(figures)),
    )
    return "\n".join(line for title, lines in parts for line in (title, "", *lines, ""))


def _origin(figures: Figures, raw: str) -> str:
    return (
        "Written by `moerl bench control-plane` (`make bench`); no figure here is typed by hand. "
        f"Raw figures of the run: [{raw}]({raw}), finished {figures['finished']}."
    )


def _race(figures: Figures) -> list[str]:
    runs = figures["race"]["runs"]
    ours = [run["moerl"]["seconds"] for run in runs]
    theirs = [run["jobset"]["seconds"] for run in runs]
    bare = [run["jobsetBare"]["seconds"] for run in runs]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ready = [run["moerl"]["readySeconds"] for run in runs]
    pods, jobset = figures["race"]["pods"], figures["machine"]["jobset"]
    return [
        f"The shape of `examples/qwen3-grpo-48-nodes.yaml` ({pods} pods with 8 GPUs and 16 EFAs each; nodes ready "
        f"beforehand) as a MoERLJob, beside the same {pods} pods as a JobSet ({jobset}, its controller outside the "
        f"cluster as the operator is, without webhooks), {len(runs)} interleaved runs. The MoERLJob's environment and "
        f"buffer pods ({shapes.server_pods()}), Services, policies and accounts are made in the same time and not "
        "counted. The JobSet's "
        "pods are word for word those that the operator makes; the bare ones have nothing but their devices, and show "
        "what environment, mounts and affinity cost the API server and the scheduler of this machine.",
        "",
        "| | median | lowest | highest |",
        "|---|---|---|---|",
        _row("MoERLJob, s", ours),
        _row(f"JobSet {jobset}, the same pods, s", theirs),
        _row("ratio MoERLJob / JobSet, per run", ratios),
        _row(f"JobSet {jobset}, bare pods, s", bare),
        _row("ratio MoERLJob / JobSet with bare pods, per run", [a / b for a, b in zip(ours, bare, strict=True)]),
        _row("MoERLJob until condition Ready, s", ready),
        _row("MoERLJob deleted, all pods gone, s", [run["moerl"]["deleteSeconds"] for run in runs]),
    ]


def _row(name: str, values: Sequence[float]) -> str:
    return f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |"


_VERBS = ("create", "patch", "update", "delete", "dry-run")


def _writes(figures: Figures) -> list[str]:
    runs = figures["race"]["runs"]
    lines = [
        "From the audit log, leases left out; median over the runs. Events are among the creates. Dry runs write "
        "nothing: they ask the server's opinion of each rendered child before anything is made.",
        "",
        "| | create | patch | update | delete | dry run | all but dry runs |",
        "|---|---|---|---|---|---|---|",
    ]
    for who, label in (("moerl", "MoERLJob"), ("jobset", "JobSet, the same pods")):
        for phase, when in (("writesToRunning", "until running"), ("writesToDeleted", "deletion")):
            counted = [totals(run[who][phase]) for run in runs]
            cells = [statistics.median(one.get(verb, 0) for one in counted) for verb in _VERBS]
            whole = statistics.median(sum(one.values()) - one.get("dry-run", 0) for one in counted)
            lines.append(f"| {label}, {when} | " + " | ".join(f"{cell:g}" for cell in (*cells, whole)) + " |")
    first = runs[0]["moerl"]["writesToRunning"]
    said = ", ".join(f"{key} {number}" for key, number in first.items() if not key.startswith("dry-run"))
    return [*lines, "", f"By resource, MoERLJob of the first run until running: {said}."]


def _rest(figures: Figures) -> list[str]:
    idle, restart = figures["idle"], figures["restart"]
    leases = sum(number for key, number in idle["writes"].items() if "leases" in key)
    dry = sum(number for key, number in idle["writes"].items() if key.startswith("dry-run"))
    others = sum(idle["writes"].values()) - leases - dry
    memory = figures["memoryMiB"]
    rows = {
        f"Writes in {idle['seconds']:.0f} s, one finished and one running job": f"{others}, and {leases} of the Lease",
        f"Operator restarted under a running job of {restart['pods']} pods: pods changed": restart["changedPods"],
        "… writes by the new operator in its first 30 s (without Lease)": sum(
            n for key, n in restart["writes"].items() if not key.startswith("dry-run")
        ),
        "… seconds until it leads": f"{restart['secondsToLead']:.1f}",
        "Operator's resident memory after the runs (peak), MiB": f"{memory['now']:.0f} ({memory['peak']:.0f})",
        "Cluster start, warm, s": f"{figures['warmStartSeconds']:.1f}",
    }
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
