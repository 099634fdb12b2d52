"""The program cache: what a folder is named by, and what an interrupted or impossible build leaves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerl_local.cluster import build
from moerl_local.cluster.errors import ClusterError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache and a Go command of the test's own; the functions' memory is emptied around it."""
    monkeypatch.setenv("MOERL_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    build._go_version.cache_clear()
    build._key.cache_clear()


def fake_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "go1.26.8", build_script: str = ""
) -> None:
    """A `go` that knows its version and builds by `build_script`, in which $out is the target."""
    folder.mkdir()
    go = folder / "go"
    go.write_text(
        f"""#!/bin/sh
if [ "$1" = env ]; then echo '{{"GOVERSION":"{version}","GOOS":"linux","GOARCH":"amd64"}}'; exit; fi
while [ "$1" != -o ]; do shift; done
out=$2
{build_script}
"""
    )
    go.chmod(go.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_key_follows_sources_and_go_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch)
    modules = tmp_path / "go"
    for program in build.PROGRAMS.values():
        (modules / program.module).mkdir(parents=True, exist_ok=True)
        (modules / program.module / "go.mod").write_text("module x\n")
    monkeypatch.setattr(build, "GO_DIR", modules)
    first, first_extra = build.bin_dir(), build.bin_dir(extra=True)
    assert first != first_extra

    (modules / "jobset" / "go.mod").write_text("module y\n")
    forget()
    assert build.bin_dir() == first, "a benchmark's pin must not rename the cluster's programs"
    assert build.bin_dir(extra=True) != first_extra

    (modules / "kwok" / "main.go").write_text("package main\n")
    forget()
    second = build.bin_dir()
    assert second != first

    forget()
    fake_go(tmp_path / "bin2", monkeypatch, version="go1.27.0")
    assert build.bin_dir() != second


def test_builds_only_what_is_asked_and_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch, build_script="echo built > $out; echo run >> $out.log")
    folder = build.build(["kubectl", "etcd"])
    assert {path.name for path in folder.iterdir() if not path.name.endswith(".log")} == {"kubectl", "etcd"}
    before = sorted(path.name for path in folder.iterdir())
    build.build(["kubectl", "etcd"])
    assert sorted(path.name for path in folder.iterdir()) == before
    assert [program.name for program in build.missing(["kwok", "kubectl", "kube-apiserver"])] == [
        "kube-apiserver",
        "kwok",
    ]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo half > $out; echo 'write: no space left on device' >&2; exit 1", "the disk is full"),
        ("echo 'dial tcp: lookup proxy.example.test: no such host' >&2; exit 1", "proxy cannot be reached"),
        ("echo 'main.go:1: syntax error' >&2; exit 1", "syntax error"),
    ],
)
def test_failed_build_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    fake_go(tmp_path / "bin", monkeypatch, build_script=script)
    with pytest.raises(ClusterError, match=said) as raised:
        build.build(["kubectl"])
    assert "\n" not in str(raised.value)
    assert list(build.bin_dir().iterdir()) == []


def test_missing_or_old_go_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch, version="go1.19.8")
    with pytest.raises(ClusterError, match=r"too old \(go1\.19\.8\); install Go 1\.26"):
        build.bin_dir()
    forget()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="Go is not installed; install"):
        build.bin_dir()


def test_full_disk_is_said_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(tmp_path / "bin", monkeypatch, build_script="echo built > $out")
    monkeypatch.setattr(build.shutil, "disk_usage", lambda path: Usage())
    with pytest.raises(ClusterError, match=r"disk nearly full: 0\.5 GiB free .* set MOERL_CACHE"):
        build.build(["kubectl"])
    assert not build.bin_dir().exists()


class Usage:
    """What shutil.disk_usage says of a nearly full disk."""

    free = 1 << 29


def test_unknown_program_is_named() -> None:
    with pytest.raises(ClusterError, match="unknown program kubelt; known are: kube-apiserver"):
        build.missing(["kubelt"])
