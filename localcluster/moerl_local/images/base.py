"""The base image of local pods: Debian with Python 3.11 and Redis, made by debootstrap.

It stands in for the public slim image where no registry can be reached. Its /usr/bin/python3.11 is the
interpreter of a Debian 12 host, so a pod can run the checkout's virtual environment from a read-only mount.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moerl_local import paths
from moerl_local.images import archive
from moerl_local.images.errors import ImageError

TAG = "moerl-base:local"
SUITE = "bookworm"
PACKAGES = ("python3", "ca-certificates", "redis-server")
USER_ID = 65532  # as in the pods' security context
NEEDED_MIB = 1500  # the root file system and two copies of its archive
SECONDS = 60  # about, on two cores
# Left out of the image: nothing reads them, and they are a third of it. Licences (copyright files) stay.
PRUNED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/locale", "usr/share/man", "usr/share/info", "var/log")
RECIPE = 4  # raise when this file changes what the image holds


@dataclass(frozen=True, slots=True)
class Image:
    """An image archive in the cache."""

    tag: str
    path: Path
    seconds: float  # how long it took to make, 0 when it was there
    key: str


def key() -> str:
    """What the image is made from, as a short hash: the name of its cached archive."""
    recipe = [RECIPE, SUITE, PACKAGES, PRUNED, archive.architecture(), os.environ.get("MOERL_DEBIAN_MIRROR", "")]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]


def images_dir() -> Path:
    """Where image archives are cached."""
    return paths.cache_dir() / "images"


def ensure(say: Callable[[str], None] = lambda _: None) -> Image:
    """The archive of the base image, made now if the cache has none.

    `MOERL_DEBIAN_MIRROR` replaces debootstrap's default mirror. Raises ImageError where a prerequisite is missing.
    """
    folder = images_dir()
    path = folder / f"base-{key()}.tar"
    if path.exists():
        return Image(TAG, path, 0.0, key())
    _check()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".base.lock"):
        if path.exists():
            return Image(TAG, path, 0.0, key())
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".base-", dir=folder) as work:
            root = Path(work) / "root"
            say(f"base image: debootstrap {SUITE} with {', '.join(PACKAGES)} (about {SECONDS} s)")
            _debootstrap(root, Path(work) / "log")
            _prune(root)
            _add_user(root)
            say("base image: packing")
            _pack(root, path)
        forget_old("base", path)
        return Image(TAG, path, time.monotonic() - began, key())


def _check() -> None:
    if os.geteuid() != 0:
        raise ImageError("making the base image needs root (debootstrap): run it with sudo, or give --base-image")
    if not shutil.which("debootstrap"):
        raise ImageError("debootstrap is missing: apt-get install debootstrap")
    folder = images_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 20
    if free < NEEDED_MIB:
        raise ImageError(f"{images_dir()} has {free} MiB free, the base image needs {NEEDED_MIB}: free some space, "
                         "or set MOERL_CACHE to another disk")  # fmt: skip


def _debootstrap(root: Path, log: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
    if mirror := os.environ.get("MOERL_DEBIAN_MIRROR"):
        command.append(mirror)
    # A mount namespace of its own: debootstrap mounts /proc in the target, and a kill must leave no mount behind.
    command = ["unshare", "--mount", "--propagation=private", *command]
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise ImageError(f"debootstrap failed: {'; '.join(lines[-3:]) or done.returncode}")


def _prune(root: Path) -> None:
    for name in PRUNED:
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o755)
    (root / "var/lib/apt/lists/partial").mkdir()
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    for entry in (root / "usr/share/doc").rglob("*"):
        if not entry.is_dir() and entry.name != "copyright":
            entry.unlink()
    for name in ("dev", "proc", "sys"):  # the container runtime fills them
        for entry in (root / name).iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for name in ("etc/hostname", "etc/resolv.conf"):  # copies of this host's
        (root / name).unlink(missing_ok=True)


def _add_user(root: Path) -> None:
    """The account of restricted pods has a name: programs that ask who they are fail without one (kopf, torch)."""
    with (root / "etc/passwd").open("a") as passwd, (root / "etc/group").open("a") as group:
        passwd.write(f"moerl:x:{USER_ID}:{USER_ID}::/tmp:/usr/sbin/nologin\n")
        group.write(f"moerl:x:{USER_ID}:\n")


def _pack(root: Path, path: Path) -> None:
    config = archive.Config(
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        command=("/usr/bin/python3",),
        labels={"org.opencontainers.image.title": "moerl-base", "dev.moerl.recipe": key()},
    )
    archive.write(root, path, tag=TAG, config=config)


def forget_old(name: str, current: Path) -> None:
    """Removes the archives of earlier recipes: the cache holds one of each image."""
    for path in images_dir().glob(f"{name}-*.tar"):
        if path != current:
            path.unlink()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock: two commands at once make an image once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
