"""Builds the operator's and the data plane's image from their Dockerfiles into archives in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moerl_local import paths
from moerl_local.images import base as base_image
from moerl_local.images import engine as engines
from moerl_local.images import load, wheels
from moerl_local.images.base import Image, forget_old, images_dir, locked
from moerl_local.images.errors import ImageError


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: its name, its Dockerfile and lock in the checkout, and the room that a build takes."""

    name: str
    tag: str
    dockerfile: str
    lock: str
    needed_mib: int


RECIPES = {
    "operator": Recipe("operator", "moerl-operator:local", "Dockerfile", "locks/operator.txt", 2_000),
    "runtime": Recipe("runtime", "moerl-runtime:local", "images/runtime.Dockerfile", "locks/runtime.txt", 30_000),
}


def key(recipe: Recipe, base: str) -> str:
    """What the image is made from, as a short hash."""
    digest = hashlib.sha256()
    for part in (recipe.dockerfile, recipe.lock):
        digest.update((wheels.root() / part).read_bytes())
    digest.update(f"{wheels.source_hash()}\0{base}\0{wheels.UV}".encode())
    return digest.hexdigest()[:16]


def ensure(name: str, *, base: str | None = None, say: Callable[[str], None] = lambda _: None) -> Image:
    """The archive of image `name`, built now if the cache has none that is current.

    `base` names a base image that the engine has or can pull; by default the local one is made and loaded.
    Raises ImageError where a prerequisite is missing or the build fails.
    """
    recipe = RECIPES[name]
    current = key(recipe, base or base_image.key())
    path = images_dir() / f"{name}-{current}.tar"
    with locked(images_dir() / f".{name}.lock"):
        if path.exists():
            return Image(recipe.tag, path, 0.0, current)
        _require_space(recipe)
        began = time.monotonic()
        with engines.running() as engine:
            build_in(engine, recipe, base=base, say=say)
            say(f"{recipe.tag}: saving")
            _save(engine, recipe, path)
        forget_old(name, path)
        return Image(recipe.tag, path, time.monotonic() - began, current)


def build_in(engine: engines.Engine, recipe: Recipe, *, base: str | None = None, say: Callable[[str], None]) -> None:
    """Builds the image in a running engine; what has not changed since the last build there is not done again."""
    house = wheels.wheelhouse(wheels.root() / recipe.lock, say)
    if not base:
        engine.run("load", "--quiet", "--input", str(base_image.ensure(say).path))
    with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=paths.cache_dir()) as work:
        _context(recipe, house, Path(work))
        say(f"{recipe.tag}: building")
        _build(engine, recipe, Path(work), base or base_image.TAG)


def archive(name: str, *, say: Callable[[str], None] = lambda _: None) -> Image:
    """The archive of any image, made now if need be."""
    return base_image.ensure(say) if name == "base" else ensure(name, say=say)


def _context(recipe: Recipe, house: Path, folder: Path) -> None:
    """The build context: Dockerfile, lock and wheels (hard links where the cache is on the same disk)."""
    shutil.copy(wheels.root() / recipe.dockerfile, folder / "Dockerfile")
    (folder / "locks").mkdir()
    shutil.copy(wheels.root() / recipe.lock, folder / "locks")
    target = folder / "wheelhouse"
    target.mkdir()
    for wheel in house.iterdir():
        os.link(wheel, target / wheel.name)
    (folder / "application").mkdir()
    wheels.own_wheel(folder / "application")


def _build(engine: engines.Engine, recipe: Recipe, context: Path, base: str) -> None:
    # The host's network, since a private engine has no bridge; nothing in the local build uses it.
    engine.run(
        "build", "--network=host", f"--build-arg=BASE_IMAGE={base}", "--tag", recipe.tag, "--force-rm", str(context)
    )


def _save(engine: engines.Engine, recipe: Recipe, path: Path) -> None:
    partial = path.with_suffix(".partial")
    try:
        engine.run("save", "--output", str(partial), recipe.tag)
        if load.tags(partial) != [recipe.tag]:
            raise ImageError(f"{partial} does not hold {recipe.tag}")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _require_space(recipe: Recipe) -> None:
    images_dir().mkdir(parents=True, exist_ok=True)
    for folder in (images_dir(), paths.state_dir()):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free >> 20
        if free < recipe.needed_mib:
            raise ImageError(f"{folder} has {free} MiB free, building {recipe.tag} needs {recipe.needed_mib}: "
                             "free some space, or set MOERL_CACHE and MOERL_STATE to another disk")  # fmt: skip
