"""`moerl bench` on the command line."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import click

from moerl_bench.errors import BenchError
from moerl_local.cluster.errors import ClusterError
from moerl_operator.kube.api import KubeError

DOCS = Path(__file__).resolve().parents[2] / "docs"
RAW = "benchmarks/control-plane.json"
RESULTS = Path(__file__).resolve().parents[1] / "results"
KERNEL_RESULTS = ("expert-parallel-two-h200.json", "nvlink-one-h200.json")
ROLLOUT_RESULT = "expert-parallel-rollout.json"


@click.group()
def bench() -> None:
    """Measure, and write docs/benchmarks.md from what was measured."""


@bench.command("control-plane")
@click.option("--cluster", default="bench", show_default=True, help="A local cluster of its own; it is reset.")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--docs", default=DOCS, show_default=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--keep", is_flag=True, help="Leave the cluster running.")
def control_plane(cluster: str, repetitions: int, docs: Path, keep: bool) -> None:
    """48 pods beside JobSet, writes, idle writes, restart, memory; about 4 minutes with 5 repetitions."""
    from moerl_bench import control_plane as measurement
    from moerl_local.cluster import launcher

    # By default Python ends at SIGTERM without its finally clauses, and the controllers beside us would live on.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        figures = measurement.measure(cluster_name=cluster, repetitions=repetitions, say=click.echo)
    except (BenchError, ClusterError, KubeError) as error:
        click.echo(f"moerl: {error}", err=True)
        sys.exit(1)
    finally:
        if not keep:
            launcher.down(cluster, purge=True)
    measurement.write(figures, docs / RAW)
    _write_page(docs)


@bench.command()
@click.option("--docs", default=DOCS, show_default=False, type=click.Path(file_okay=False, path_type=Path))
def page(docs: Path) -> None:
    """Write benchmarks.md again from the raw figures."""
    _write_page(docs)


def _write_page(docs: Path) -> None:
    from moerl_bench import kernels_report, report, rollout_report

    target = docs / "benchmarks.md"
    text = report.control_plane(json.loads((docs / RAW).read_text()), raw=RAW)
    # Those runs need GPUs, so their raw figures come with the repository and the page is written from them each time.
    two, one = (json.loads((RESULTS / name).read_text()) for name in KERNEL_RESULTS)
    text += "\n" + kernels_report.section(two, one, raw="../bench/results")
    rollout = json.loads((RESULTS / ROLLOUT_RESULT).read_text())
    target.write_text(text + "\n" + rollout_report.section(rollout, raw=f"../bench/results/{ROLLOUT_RESULT}"))
    click.echo(target)
