"""`moerl-kernels` on the command line."""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from moerl_kernels.proof import preflight as proof
from moerl_kernels.proof.report import Report

TRANSPORTS = ("Auto", "EFAGDA", "EFAProxy", "NVLink", "TCP")
TERMINATION_LOG = "/dev/termination-log"
FILE = "transport-report.json"


def _finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """NaN passes every range, and a watchdog that is set to it or to infinity never fires."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Expert-parallel kernels: prove the transport of this node."""


@main.command()
@click.option("--transport", type=click.Choice(TRANSPORTS), envvar="MOERL_TRANSPORT", default="Auto",
              show_default=True, help="What the job asked for  [MOERL_TRANSPORT]")  # fmt: skip
@click.option("--on-mismatch", type=click.Choice(["Fail", "Warn"]), envvar="MOERL_ON_MISMATCH", default="Fail",
              show_default=True, help="Fail: exit 3 for another transport, 4 for Unknown. Warn, or Auto: exit 0 and "
              "say so.  [MOERL_ON_MISMATCH]")  # fmt: skip
@click.option("--deadline", type=click.FloatRange(min=1.0), envvar="MOERL_PREFLIGHT_SECONDS", default=600.0,
              show_default=True, callback=_finite, help="Seconds for everything, the wait for the gang's other pods "
              "included. After that the verdict is Unknown.  [MOERL_PREFLIGHT_SECONDS]")  # fmt: skip
@click.option("--gloo", is_flag=True, help="Without GPUs: exchange by torch.distributed over gloo in place of plain "
              "sockets; imports torch.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON of at most 4 KiB.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the full report  "
              "[default: transport-report.json in MOERL_RUN_DIR, else in the temporary folder]")  # fmt: skip
@click.option("--termination-log", type=click.Path(dir_okay=False, path_type=Path), default=TERMINATION_LOG,
              show_default=True, help="The container's last words, written if the file is there.")  # fmt: skip
def preflight(
    transport: str,
    on_mismatch: str,
    deadline: float,
    gloo: bool,
    as_json: bool,
    report: Path | None,
    termination_log: Path,
) -> None:
    """Exchange bytes between the pods of this gang and say which transport carried them, by counters.

    The gang is found as torch.distributed finds it: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; all of its pods run
    this at once. The ports after MASTER_PORT are used. Verdicts: EFAGDA, EFAProxy, NVLink, SHM, TCP; Local (one rank,
    or one device); Unknown (not proven).

    Exit codes: 0 as asked for (or only warned), 2 wrong use, 3 another transport, 4 unknown, 143 ended by SIGTERM.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wish = proof.Wish(transport, on_mismatch, deadline, gloo)
    file = report or Path(os.environ.get("MOERL_RUN_DIR") or tempfile.gettempdir()) / FILE
    environment = dict(os.environ)

    def late() -> int:
        return _tell(proof.timed_out(wish, environment, file=str(file)), file, termination_log, as_json=as_json)

    watchdog = proof.bounded(
        deadline, late, otherwise=proof.EXIT_UNKNOWN if proof.strict(transport, on_mismatch) else proof.EXIT_OK
    )
    try:
        found = proof.run(wish, environment, file=str(file))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    watchdog.cancel()
    sys.exit(_tell(found, file, termination_log, as_json=as_json))


def _tell(found: Report, file: Path, termination_log: Path, *, as_json: bool) -> int:
    """Write both forms; a file that cannot be written is said, and changes no verdict."""
    try:
        file.write_text(found.full())
    except OSError as error:
        click.echo(f"moerl-kernels: the full report was not written: {error}", err=True)
    brief = found.brief()
    try:
        if termination_log.exists():
            termination_log.write_text(brief)
    except OSError as error:
        click.echo(f"moerl-kernels: {termination_log} was not written: {error}", err=True)
    click.echo(brief if as_json else found.words())
    sys.stdout.flush()
    return proof.exit_code(found)
