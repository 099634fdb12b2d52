"""`moerl image`: make the images of this project and load them into the local cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import DEFAULT_NAME, Cluster
from moerl_local.images import base as base_image
from moerl_local.images import build as building
from moerl_local.images import check as checking
from moerl_local.images import load as loading
from moerl_local.images.base import Image
from moerl_local.images.errors import ImageError


def _one_line(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except (ImageError, ClusterError) as error:
            raise click.ClickException(str(error)) from error

    return run


@click.group()
def image() -> None:
    """Container images: make them here and load them into the local cluster."""


@image.command("base")
@_one_line
def base_command() -> None:
    """Make the base image (Debian 12, Python 3.11, Redis) with debootstrap; needs root, no container engine."""
    _report(base_image.ensure(click.echo))


@image.command("build")
@click.argument("name", type=click.Choice(sorted(building.RECIPES)))
@click.option("--base-image", help="A base image the engine can pull; default: the local one, made if need be.")
@_one_line
def build_command(name: str, base_image: str | None) -> None:
    """Build an image from its Dockerfile, with a private Docker Engine or with that of DOCKER_HOST."""
    _report(building.ensure(name, base=base_image, say=click.echo))


@image.command("test")
@click.argument("tests", nargs=-1)
@_one_line
def test_command(tests: tuple[str, ...]) -> None:
    """Run the data plane's tests (or TESTS, paths in the checkout) inside the runtime image."""
    checking.run("runtime", tests or checking.TESTS, say=click.echo)


@image.command("load")
@click.argument("name", type=click.Choice(["base", *sorted(building.RECIPES)]))
@click.option("--cluster", "cluster_name", default=DEFAULT_NAME, show_default=True, help="The local cluster.")
@_one_line
def load_command(name: str, cluster_name: str) -> None:
    """Import an image into the containerd of the local cluster's node, making it first where needed."""
    socket = Cluster.load(cluster_name).containerd_socket
    if not socket:
        raise ImageError(f"cluster {cluster_name!r} has no real node, so nothing to load an image into")
    made = building.archive(name, say=click.echo)
    began = time.monotonic()
    for tag in loading.load(made.path, socket):
        click.echo(f"loaded {tag} in {time.monotonic() - began:.0f} s")


def _report(made: Image) -> None:
    how = f"made in {made.seconds:.0f} s" if made.seconds else "already there"
    click.echo(f"{made.tag}: {how}, {made.path.stat().st_size / 1e6:.0f} MB, {made.path}")
