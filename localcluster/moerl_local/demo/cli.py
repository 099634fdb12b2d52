"""`moerl demo` on the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import DEFAULT_NAME, Cluster
from moerl_local.demo import page, plan
from moerl_local.demo.errors import DemoError
from moerl_local.demo.record import Record


@click.group(invoke_without_command=True)
@click.option("--cluster", "cluster_name", default=DEFAULT_NAME, show_default=True, help="Which local cluster to use.")
@click.option("--out", default="demo-report", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--keep", is_flag=True, help="Leave the finished job, for a look around.")
@click.option("--operator-image", help="Run the operator from this image (loaded before) instead of the checkout.")
@click.option("--out-of-cluster", is_flag=True, help="Run the operator as a process beside the cluster.")
@click.option("--timeout", default=900.0, show_default=True, help="Seconds that the job may take.")
@click.option("--random-weights", is_flag=True, help="Start from the example's model, not from a warm start.")
@click.pass_context
def demo(context: click.Context, cluster_name: str, out: Path, keep: bool, operator_image: str | None,
         out_of_cluster: bool, timeout: float, random_weights: bool) -> None:  # fmt: skip
    """Train a tiny MoE in real pods on this machine, and draw what happened."""
    if context.invoked_subcommand:
        return
    from moerl_local.demo import run

    if operator_image and out_of_cluster:
        raise click.UsageError("--operator-image and --out-of-cluster exclude each other")
    if not os.environ.get("MOERL_PLAN_SHOWN"):
        click.echo(plan.text())
    options = run.Options(
        cluster=cluster_name,
        out=out,
        keep=keep,
        operator_image=operator_image,
        out_of_cluster=out_of_cluster,
        job_seconds=timeout,
        random_weights=random_weights,
    )
    try:
        record = run.run(options, Console())
    except DemoError as error:
        click.echo(f"moerl: {error}", err=True)
        _say_how_to_look(cluster_name, keep=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("\nmoerl: interrupted; `moerl cluster down` ends what is left", err=True)
        sys.exit(130)
    click.echo(f"\nHeld-out exact match {record.evaluation['exactMatch']:.1%}. Open {out / 'index.html'}")
    _say_how_to_look(cluster_name, keep=keep)


def _say_how_to_look(cluster_name: str, *, keep: bool) -> None:
    from moerl_local.demo import run

    try:
        click.echo(run.look_around(Cluster.load(cluster_name), keep=keep))
    except ClusterError:
        return


@demo.command()
@click.option("--out", default="demo-report", show_default=True, type=click.Path(file_okay=False, path_type=Path))
def report(out: Path) -> None:
    """Draw index.html again from record.json."""
    source = out / "record.json"
    if not source.exists():
        raise click.ClickException(f"{source} is missing: run `moerl demo` first, or give --out")
    target = out / "index.html"
    target.write_text(page.render(Record.load(source)))
    click.echo(target)
