"""Brings images into the real node, since none can be counted on to be pullable."""

from __future__ import annotations

from pathlib import Path

from moerl_local.cluster.errors import ClusterError
from moerl_local.cluster.handle import DEFAULT_NAME, Cluster
from moerl_local.images import load as loading
from moerl_local.images.errors import ImageError


def load(archive: Path, *, name: str = DEFAULT_NAME) -> list[str]:
    """Import an image archive (of `docker save`, or OCI) into cluster `name`.

    Returns:
        The images' names as a pod must spell them.

    Raises:
        ClusterError: the cluster has no real node, or the archive is none.
    """
    socket = Cluster.load(name).containerd_socket
    if socket is None:
        raise ClusterError(f"cluster {name!r} runs without its real node, so there is nothing to load images into")
    try:
        return loading.load(archive, socket)
    except ImageError as error:
        raise ClusterError(str(error)) from error
