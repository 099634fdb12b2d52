"""What the demo needs and can be made beside the Go compiler: the base image and the warm-start model.

`python -m moerl_local.demo.prepare` is called by bootstrap.sh; `moerl demo` calls the same functions, which
then find everything in the cache.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from moerl_local.demo.errors import DemoError
from moerl_local.demo.manifests import CHECKOUT, example_dataset
from moerl_local.images import base as base_image
from moerl_local.images.errors import ImageError
from moerl_local.paths import cache_dir

# What the warm-start model is made from; a change of any of these makes it anew.
_SOURCES = ("model/tiny.py", "model/warmstart.py", "model/evaluate.py", "tasks")


def image() -> base_image.Image:
    """The base image of the demo's pods, made at first use.

    Raises:
        DemoError: a prerequisite of making it is missing.
    """
    try:
        return base_image.ensure(print)
    except ImageError as error:
        raise DemoError(str(error)) from error


def warm_start(dataset: str) -> Path:
    """Folder of a policy that has seen a little supervision: what RL starts from in practice.

    Raises:
        DemoError: training it failed; carries its last words.
    """
    folder = cache_dir() / "models" / f"warmstart-{_key(dataset)}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".warmstart-") as unfinished:
        out = Path(unfinished) / "model"
        run_python("moerl_runtime.model.warmstart", "--out", str(out), "--dataset", dataset)
        out.rename(folder)
    return folder


def run_python(module: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What a program of the data plane prints; it is a process of its own, since this package knows no torch.

    Raises:
        DemoError: it failed.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise DemoError(f"python -m {module} failed: {last}")
    return done.stdout


def _key(dataset: str) -> str:
    digest = hashlib.sha256(dataset.encode())
    runtime = CHECKOUT / "runtime" / "moerl_runtime"
    for name in _SOURCES:
        path = runtime / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def main() -> int:
    """Make both, with a line each."""
    try:
        made = image()
        print(f"base image: {made.path}")
        print(f"warm-start model: {warm_start(example_dataset())}")
    except DemoError as error:
        print(f"moerl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
