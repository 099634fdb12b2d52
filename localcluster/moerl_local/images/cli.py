"""`moerl image`: make the images of this project and load them into the local cluster."""

from __future__ import annotations

import time

import click

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import DEFAULT_NAME, Cluster
from moerl_local.images import base as base_image
from moerl_local.images import load as loading
from moerl_local.images.errors import ImageError


@click.group()
def image() -> None:
    """Container images: make them here and load them into the local cluster."""


@image.command("base")
def base_command() -> None:
    """Make the base image (Debian 12, Python 3.11, Redis) with debootstrap; needs root, no container engine."""
    try:
        made = base_image.ensure(click.echo)
    except ImageError as error:
        raise click.ClickException(str(error)) from error
    how = f"made in {made.seconds:.0f} s" if made.seconds else "already there"
    click.echo(f"{made.tag}: {how}, {made.path.stat().st_size / 1e6:.0f} MB, {made.path}")


@image.command("load")
@click.argument("name", type=click.Choice(["base"]))
@click.option("--cluster", "cluster_name", default=DEFAULT_NAME, show_default=True, help="The local cluster.")
def load_command(name: str, cluster_name: str) -> None:
    """Import an image into the containerd of the local cluster's node, making it first where needed."""
    try:
        socket = Cluster.load(cluster_name).containerd_socket
        if not socket:
            raise ImageError(f"cluster {cluster_name!r} has no real node, so nothing to load an image into")
        began = time.monotonic()
        for tag in loading.load(base_image.ensure(click.echo).path, socket):
            click.echo(f"loaded {tag} in {time.monotonic() - began:.0f} s")
    except (ImageError, ClusterError) as error:
        raise click.ClickException(str(error)) from error
