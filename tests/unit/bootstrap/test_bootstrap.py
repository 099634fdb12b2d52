"""Missing prerequisites get one line that says how to mend it, before anything is made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def _bootstrap(root: Path, purpose: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MOERL_CACHE": str(tmp_path / "cache"), **env}
    script = [str(root / "localcluster" / "bootstrap.sh"), purpose]
    return subprocess.run(script, env=base, capture_output=True, text=True, check=False, timeout=60)


def _only(tmp_path: Path, *programs: str) -> str:
    """A PATH with just these programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(
            next(p for p in ("/usr/bin", "/bin") if Path(p, program).exists()) + f"/{program}"
        )
    return str(folder)


_NEEDED = ("bash", "env", "dirname", "uname", "id", "awk", "df", "mkdir")


@pytest.mark.skipif(os.geteuid() != 0, reason="without root the demo says so first")
def test_without_go(root: Path, tmp_path: Path) -> None:
    done = _bootstrap(root, "demo", tmp_path, PATH=_only(tmp_path, *_NEEDED))
    assert done.returncode == 1
    assert done.stderr == "moerl: Go is not on PATH: install Go 1.26 or later from https://go.dev/dl\n"
    assert not (tmp_path / "cache").exists()


def test_with_a_cache_that_cannot_be_written(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _bootstrap(root, "lint", tmp_path, MOERL_CACHE=str(tmp_path / "file" / "cache"))
    assert done.returncode == 1
    assert "set MOERL_CACHE to another folder" in done.stderr
    assert done.stderr.count("\n") == 1


def test_with_a_full_disk(root: Path, tmp_path: Path) -> None:
    path = _only(tmp_path, *(name for name in _NEEDED if name != "df"))
    fake = Path(path) / "df"
    fake.write_text("#!/bin/sh\necho head; echo /dev/x 1 1 1048 99% /\n")
    fake.chmod(0o755)
    done = _bootstrap(root, "lint", tmp_path, PATH=path)
    assert done.returncode == 1
    assert "disk nearly full: 0 GiB free" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", [".ci/run", "localcluster/bootstrap.sh"])
def test_scripts_parse(root: Path, script: str) -> None:
    subprocess.run(["bash", "-n", str(root / script)], check=True)
