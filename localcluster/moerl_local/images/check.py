"""Runs the data plane's tests inside the image that the Dockerfile builds: the code is the image's, not the checkout's.

Test tools (what the lock for development has beyond the image's) are mounted beside, read-only; there is no network.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from moerl_local import paths
from moerl_local.images import build, engine, wheels
from moerl_local.images.base import locked
from moerl_local.images.errors import ImageError

TESTS = ("tests/runtime", "tests/runtime_torch", "tests/unit/runtime_torch")


def run(name: str, tests: Sequence[str] = TESTS, *, say: Callable[[str], None]) -> None:
    """Runs `tests` in image `name`, output to the terminal. Raises ImageError where one fails."""
    recipe = build.RECIPES[name]
    tools = test_tools(wheels.root() / recipe.lock, say)
    with tempfile.TemporaryDirectory(prefix="moerl-check-") as work, engine.running() as docker:
        checkout = Path(work)
        checkout.chmod(0o755)  # the image's user reads it
        shutil.copy(wheels.root() / "pyproject.toml", checkout)
        for folder in ("tests", "examples"):
            shutil.copytree(wheels.root() / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
        build.build_in(docker, recipe, say=say)
        say(f"{recipe.tag}: {' '.join(tests)}")
        docker.run(
            "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp:rw,exec", "--init=false",
            f"--volume={checkout}:/checkout:ro", f"--volume={tools}:/tools:ro", "--workdir=/checkout",
            "--env=PYTHONPATH=/tools", "--env=HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis", recipe.tag,
            "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, quiet=False,
        )  # fmt: skip


def test_tools(lock: Path, say: Callable[[str], None]) -> Path:
    """A folder with the packages of locks/dev.txt that `lock` lacks, installed once per content of both."""
    have = set(_blocks(lock))
    wanted = {
        package: text for package, text in _blocks(wheels.root() / "locks" / "dev.txt").items() if package not in have
    }
    text = "\n".join(wanted.values()) + "\n"
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = paths.cache_dir() / "wheels" / f"tools-{lock.stem}-{key}"
    with locked(paths.cache_dir() / "wheels" / ".tools.lock"):
        if folder.exists():
            return folder
        say(f"test tools: installing {len(wanted)} packages")
        with tempfile.TemporaryDirectory(prefix=".tools-", dir=folder.parent) as work:
            requirements = Path(work) / "lock.txt"
            requirements.write_text(text)
            target = Path(work) / "tools"
            wheels.pip("install", "--no-deps", "--require-hashes", "--target", str(target), "-r", str(requirements))
            target.chmod(0o755)
            target.rename(folder)
    return folder


def _blocks(lock: Path) -> dict[str, str]:
    """Package name -> its lines of a lock, hashes included (several lines where platforms differ)."""
    out: dict[str, str] = {}
    name = ""
    for line in lock.read_text().splitlines():
        if found := re.match(r"([a-z0-9][a-z0-9._-]*)==", line):
            name = found[1]
        if name and not line.lstrip().startswith("#"):
            out[name] = f"{out[name]}\n{line}" if name in out else line
    if not out:
        raise ImageError(f"{lock} is no lock: it names no package")
    return out
