"""The wheelhouse: every wheel that an image needs, checked against the lock's hashes; the build needs no network.

TLS inside a build sees only the base image's certificates; outside, pip uses this machine's settings.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from moerl_local import paths
from moerl_local.images.base import locked
from moerl_local.images.errors import ImageError

UV = "uv==0.13.9"  # installs inside the image; several times as fast as pip
PYTHON = (3, 11)
# Sources of the one distribution: what of the checkout goes into its wheel.
SOURCES = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "operator",
    "runtime",
    "bench",
    "kernels",
    "localcluster/moerl_local",
)


def root() -> Path:
    """The checkout; images are built from one, not from an installed wheel."""
    folder = Path(__file__).resolve().parents[3]
    if not (folder / "Dockerfile").exists():
        raise ImageError("images are built from a checkout: clone the repository and install it with pip install -e .")
    return folder


def source_hash() -> str:
    """Names and contents of what goes into our own wheel, as a short hash."""
    digest = hashlib.sha256()
    for name in SOURCES:
        top = root() / name
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root())}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def wheelhouse(lock: Path, say: Callable[[str], None]) -> Path:
    """A folder with the wheels of `lock` and of uv, downloaded once per content of the lock.

    Raises ImageError where pip or the package index fails.
    """
    key = hashlib.sha256(lock.read_bytes() + UV.encode()).hexdigest()[:16]
    folder = paths.cache_dir() / "wheels" / f"{lock.stem}-{key}"
    with locked(paths.cache_dir() / "wheels" / f".{lock.stem}.lock"):
        if folder.exists():
            return folder
        say(f"wheels of {lock.name}: downloading")
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=folder.parent) as work:
            # `wheel`, not `download`: s3torchconnector comes as sources only, and is built here once they are checked.
            pip("wheel", "--no-deps", "--wheel-dir", work, "--require-hashes", "--requirement", str(lock))
            pip("wheel", "--no-deps", "--wheel-dir", work, UV)
            folder.mkdir()
            for wheel in Path(work).iterdir():
                wheel.rename(folder / wheel.name)
    return folder


def own_wheel(folder: Path) -> Path:
    """Builds moerl's own wheel into `folder` from a copy of the checkout's sources."""
    with tempfile.TemporaryDirectory(prefix="moerl-wheel-") as work:
        for name in SOURCES:
            source, target = root() / name, Path(work) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), work)
    return next(folder.glob("moerl-*.whl"))


def pip(*words: str) -> None:
    """Runs pip with this machine's settings. Raises ImageError with its last line."""
    command = [str(_pip_python()), "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ImageError(f"pip {words[0]} failed: {lines[-1] if lines else done.returncode}")


def _pip_python() -> Path:
    """An interpreter with pip: uv makes virtual environments without it."""
    folder = paths.cache_dir() / "tools" / f"pip-{sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info[:2] != PYTHON:
        raise ImageError("the images have Python 3.11, so their wheels are fetched with 3.11: make .venv with it")
    python = folder / "bin" / "python"
    if not python.exists():
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        done = subprocess.run([str(base), "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise ImageError("pip is missing: apt-get install python3-venv")
    return python
