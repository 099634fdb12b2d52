"""Image tools that need no container engine: archives, wheel sources, and what a missing prerequisite says."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from moerl_local.images import archive, base, build, check, engine, load, wheels
from moerl_local.images.cli import image
from moerl_local.images.errors import ImageError


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "hello"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    os.utime(program, (1000, 1000))
    (folder / "link").symlink_to("bin/hello")
    return folder


def test_an_archive_is_what_docker_load_reads(tmp_path: Path, rootfs: Path) -> None:
    target = tmp_path / "image.tar"
    config = archive.Config(env={"LANG": "C.UTF-8"}, command=["/bin/hello"], labels={"a": "b"})
    archive.write(rootfs, target, tag="t:1", config=config)
    with tarfile.open(target) as tar:
        [entry] = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        assert entry["RepoTags"] == ["t:1"]
        document = json.load(tar.extractfile(entry["Config"]))  # type: ignore[arg-type]
        [layer] = entry["Layers"]
        content = tar.extractfile(layer).read()  # type: ignore[union-attr]
        assert document["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
        assert document["config"] == {"Env": ["LANG=C.UTF-8"], "Cmd": ["/bin/hello"], "Labels": {"a": "b"}}
    with tarfile.open(fileobj=io.BytesIO(content)) as inner:
        assert {"./bin/hello", "./link"} <= set(inner.getnames())
        assert inner.getmember("./bin/hello").mtime == 1000, "Python checks compiled files against times"
    assert load.tags(target) == ["t:1"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["image.tar"]


def test_a_short_tag_has_containerds_full_name() -> None:
    assert load.full_name("moerl-base:local") == "docker.io/library/moerl-base:local"
    assert load.full_name("example.com/a/b:1") == "example.com/a/b:1"


def test_the_base_image_is_keyed_by_what_it_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    before = base.key()
    monkeypatch.setattr(base, "PACKAGES", (*base.PACKAGES, "less"))
    assert base.key() != before


@pytest.mark.parametrize("name", sorted(build.RECIPES))
def test_an_image_is_keyed_by_dockerfile_lock_sources_and_base(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = build.RECIPES[name]
    keys = {build.key(recipe, "a"), build.key(recipe, "b")}
    monkeypatch.setattr(wheels, "source_hash", lambda: "changed")
    assert len(keys | {build.key(recipe, "a")}) == 3


def test_the_operators_lock_has_no_torch_and_the_runtimes_no_kopf() -> None:
    operator = set(check._blocks(wheels.root() / "locks" / "operator.txt"))
    runtime = set(check._blocks(wheels.root() / "locks" / "runtime.txt"))
    assert not operator & {"torch", "transformers", "numpy", "moto"}
    assert not runtime & {"kopf", "kubernetes", "moto"}
    assert {"torch", "transformers", "redis"} <= runtime


def test_locks_agree_with_the_one_for_development() -> None:
    """What is tested is what runs: every package of an image has the version of locks/dev.txt."""
    development = check._blocks(wheels.root() / "locks" / "dev.txt")
    for name in build.RECIPES:
        for package, text in check._blocks(wheels.root() / build.RECIPES[name].lock).items():
            assert text.split()[0] in development[package], package


@pytest.mark.parametrize("path", ["Dockerfile", "images/runtime.Dockerfile"])
def test_dockerfiles_keep_the_rules(path: str) -> None:
    text = (wheels.root() / path).read_text()
    assert "ARG BASE_IMAGE=python:3.11-slim" in text
    assert text.count("FROM ${BASE_IMAGE}") == 2
    assert "USER 65532:65532" in text
    assert "PYTHONSAFEPATH=1" in text
    assert "pip install --no-index" in text
    assert "curl" not in text
    assert "ADD " not in text


def test_no_root_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOERL_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    answer = CliRunner().invoke(image, ["base"])
    assert answer.exit_code == 1
    assert "needs root (debootstrap)" in answer.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("missing", "package"), [("docker", "docker.io"), ("dockerd", "docker.io")])
def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch, missing: str, package: str) -> None:
    which = engine.shutil.which
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine.shutil, "which", lambda name, path=None: None if name == missing else which("sh"))
    with pytest.raises(ImageError, match=f"{missing} is missing: apt-get install {package}"), engine.running():
        pass


def test_a_full_disk_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOERL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(base, "NEEDED_MIB", 1 << 40)
    with pytest.raises(ImageError, match=r"MiB free, the base image needs .*set MOERL_CACHE"):
        base.ensure()


def test_loading_needs_a_running_containerd(tmp_path: Path, rootfs: Path) -> None:
    target = tmp_path / "image.tar"
    archive.write(rootfs, target, tag="t:1", config=archive.Config())
    with pytest.raises(ImageError, match=r"no containerd answers at .*is the cluster up"):
        load.load(target, tmp_path / "no.sock")
