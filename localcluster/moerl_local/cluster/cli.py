"""`moerl cluster`: the local cluster on the command line."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from moerl_local.cluster import build as builder
from moerl_local.cluster import kind, launcher, logs, network, status
from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import DEFAULT_NAME, Cluster
from moerl_local.cluster.launcher import Wanted

P = ParamSpec("P")
T = TypeVar("T")


def _speaking(function: Callable[P, T]) -> Callable[P, T]:
    """Print what is wrong in one line instead of a traceback."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ClusterError as error:
            click.echo(f"moerl: {error}", err=True)
            sys.exit(1)

    return wrapped


def _name(function: Callable[P, T]) -> Callable[P, T]:
    help_text = "Which cluster of this machine."
    return click.option("--name", default=DEFAULT_NAME, show_default=True, callback=_check_name, help=help_text)(
        function
    )


def _check_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.isalnum() or not value.islower() or len(value) > 12:
        raise click.BadParameter("up to 12 lower-case letters and digits")
    return value


def _wanted(function: Callable[P, T]) -> Callable[P, T]:
    function = click.option("--no-node", is_flag=True, help="Fake nodes only, no kubelet.")(function)
    function = click.option("--no-aws", is_flag=True, help="Without the AWS emulator.")(function)
    return click.option(
        "--time-scale",
        default=60.0,
        show_default=True,
        help="Seconds of emulated AWS in one second here; 0: a clock moved by hand.",
    )(function)


@click.group()
def cluster() -> None:
    """A Kubernetes on this machine: real control plane, fake nodes, one real node."""


@cluster.command()
@_name
@_wanted
@click.option("--engine", type=click.Choice(["local", "kind"]), default="local", show_default=True)
@_speaking
def up(name: str, no_node: bool, no_aws: bool, time_scale: float, engine: str) -> None:
    """Start the cluster, or whatever of it does not run. Builds its programs at first use (9 minutes on two cores)."""
    if engine == "kind":
        click.echo("--engine kind is untested; it has no AWS emulator")
        status.show(kind.up(name))
        return
    if not network.usable() and not no_node:
        click.echo("without root on Linux there is no real node: control plane and fake nodes only")
    found = launcher.up(name, Wanted(node=not no_node, aws=not no_aws, time_scale=time_scale))
    status.show(found)
    click.echo(f"\nexport KUBECONFIG={found.admin_kubeconfig}")


@cluster.command()
@_name
@click.option("--purge", is_flag=True, help="Delete its data and images, too.")
@_speaking
def down(name: str, purge: bool) -> None:
    """End every process, mount, cgroup, route, bridge and rule of the cluster; its data stays for the next `up`."""
    ended = launcher.down(name, purge=purge)
    click.echo(f"cluster {name}: {ended} processes ended" + (", data deleted" if purge else ""))


@cluster.command()
@_name
@_wanted
@_speaking
def reset(name: str, no_node: bool, no_aws: bool, time_scale: float) -> None:
    """Start the cluster as new: all objects gone, images kept."""
    status.show(launcher.reset(name, Wanted(node=not no_node, aws=not no_aws, time_scale=time_scale)))


@cluster.command()
@_name
@_wanted
@click.argument("processes", nargs=-1, required=True)
@_speaking
def restart(name: str, no_node: bool, no_aws: bool, time_scale: float, processes: tuple[str, ...]) -> None:
    """Start some of the cluster's processes anew (`restart aws` after a change of the emulator)."""
    status.show(launcher.restart(name, processes, Wanted(node=not no_node, aws=not no_aws, time_scale=time_scale)))


@cluster.command(name="status")
@_name
@click.option("--json", "as_json", is_flag=True, help="cluster.json as it is.")
@_speaking
def show_status(name: str, as_json: bool) -> None:
    """What runs, where, and how to reach it."""
    found = Cluster.load(name)
    if as_json:
        click.echo((found.folder / "cluster.json").read_text())
    elif not status.show(found):
        sys.exit(1)


@cluster.command(name="logs")
@_name
@click.argument("processes", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Go on as they grow.")
@click.option("-n", "--lines", default=20, show_default=True, help="Last lines of each.")
@_speaking
def show_logs(name: str, processes: tuple[str, ...], follow: bool, lines: int) -> None:
    """Logs of the cluster's processes (all, or those named)."""
    logs.show(name, processes, follow=follow, lines=lines)


@cluster.command(name="build")
@click.argument("programs", nargs=-1)
@_speaking
def build_programs(programs: tuple[str, ...]) -> None:
    """Build the cluster's programs into the cache (all but jobset, or those named)."""
    names = programs or (*builder.CONTROL_PLANE, *builder.NODE)
    builder.build(names)
    for name in names:
        click.echo(builder.program_path(name))


@cluster.command()
@_name
@click.option("--operator", is_flag=True, help="The operator's account instead of the admin's.")
@_speaking
def kubeconfig(name: str, operator: bool) -> None:
    """Print the path of a kubeconfig: `export KUBECONFIG=$(moerl cluster kubeconfig)`."""
    found = Cluster.load(name)
    click.echo(found.operator_kubeconfig if operator else found.admin_kubeconfig)


@cluster.command()
@_name
@click.argument("archives", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_speaking
def load(name: str, archives: tuple[Path, ...]) -> None:
    """Load image archives (docker save, OCI) into the real node."""
    from moerl_local.cluster import images

    for archive in archives:
        click.echo(json.dumps(images.load(archive, name=name)))
