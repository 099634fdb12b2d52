"""`moerl local run job.yaml`: the quick loop, a manifest as processes of this machine."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from moerl_runtime.agent import progress
from moerl_runtime.checkpoint import marker
from moerl_runtime.checkpoint.storage import StorageError
from moerl_runtime.config import ConfigError
from moerl_runtime.web import stop_event

from . import table
from .layout import Layout, lay_out, load_manifest
from .supervisor import LocalRun

REFRESH_SECONDS = 0.5


@click.group()
def local() -> None:
    """Run jobs as plain processes of this machine, without Kubernetes."""


@local.command()
@click.argument("manifest", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for logs, sockets and weights; default: a temporary one, removed after success.",
)
@click.option(
    "--storage",
    type=click.Path(path_type=Path, file_okay=False),
    help="Put checkpoints and artifacts below this folder instead of where the manifest says. "
    "A second run with the same folder resumes.",
)
@click.option(
    "--model",
    help="Start from this model folder (a path, file:// or s3://) instead of spec.model, "
    "for instance one made by `python -m moerl_runtime.model.warmstart --out DIR`.",
)
def run(manifest: Path, state: Path | None, storage: Path | None, model: str | None) -> None:
    """Run MANIFEST to its end: buffer, environment, engines and drivers, trainer, with a live table.

    Exit code 0 when the final policy is written, 143 after Ctrl-C, else the trainer's.
    """
    try:
        sys.exit(asyncio.run(_run(manifest, Overrides(state=state, storage=storage, model=model))))
    except (ConfigError, StorageError) as error:
        click.echo(f"moerl local: {error}", err=True)
        sys.exit(2)


@dataclass(frozen=True, slots=True)
class Overrides:
    """The command line's options."""

    state: Path | None
    storage: Path | None
    model: str | None


async def _run(manifest: Path, options: Overrides) -> int:
    name, raw = load_manifest(manifest)
    folder = options.state or Path(tempfile.mkdtemp(prefix="moerl-local-"))
    layout = lay_out(name, raw, state=folder, storage=options.storage, model=options.model)
    (layout.run_dir / progress.FILE).unlink(missing_ok=True)
    found = await asyncio.to_thread(_resumable, layout)
    if found is not None:
        click.echo(f"resuming from attempt {found.attempt}, iteration {found.step}")
    run = LocalRun(
        layout,
        first_attempt=found.attempt + 1 if found else 1,
        logs=folder / "logs",
        max_restarts=layout.spec.trainer.failure_policy.max_restarts,
    )
    click.echo(f"logs in {folder / 'logs'}; the first figures come once torch is imported (10-40 s)")
    code = await _show(run, layout, name)
    _conclude(run, progress.read(layout.run_dir), code)
    if code == 0 and options.state is None:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _resumable(layout: Layout) -> marker.Marker | None:
    where = layout.spec.storage.checkpoints if layout.spec.storage else None
    return marker.latest(where) if where else None


async def _show(run: LocalRun, layout: Layout, name: str) -> int:
    stop = stop_event()
    console = Console()
    task = asyncio.create_task(run.run(stop))
    last = ""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while not task.done():
            document = progress.read(layout.run_dir)
            if console.is_terminal:
                live.update(table.render(run, document, name=name), refresh=True)
            elif document and (now := table.line(document)) != last:
                click.echo(now)
                last = now
            await asyncio.wait([task], timeout=REFRESH_SECONDS)
        if console.is_terminal:
            live.update(table.render(run, progress.read(layout.run_dir), name=name), refresh=True)
    return task.result()


def _conclude(run: LocalRun, document: dict[str, object] | None, code: int) -> None:
    if run.failure:
        click.echo(f"moerl local: {run.failure}", err=True)
    if run.receipt:
        click.echo(table.receipt(run.receipt))
    final = (document or {}).get("final")
    if code == 0 and isinstance(final, dict):
        click.echo(f"final policy: {final['uri']} (version {final['version']})")
