"""What the demo refuses, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from moerl_local.cluster import network
from moerl_local.demo import manifests, run
from moerl_local.demo.errors import DemoError


def test_without_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "usable", lambda: False)
    with pytest.raises(DemoError, match="needs root on Linux: run it with sudo"):
        run.check(tmp_path)


def test_with_a_checkout_that_pods_cannot_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "usable", lambda: True)
    for name in ("operator", "runtime"):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    run.check(tmp_path)
    (tmp_path / "runtime").chmod(0o700)
    with pytest.raises(DemoError, match="chmod -R o"):
        run.check(tmp_path)


def test_an_example_that_is_missing_or_no_job(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="is missing"):
        manifests.example(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("kind: Pod")
    with pytest.raises(DemoError, match="holds no MoERLJob"):
        manifests.example(tmp_path / "x.yaml")


@pytest.mark.parametrize("value", ["3e-3", "1", "0.5", "0x10", "1_000", "true", "plain", "a: b"])
def test_strings_stay_strings_for_other_parsers(value: str) -> None:
    text = manifests.dump({"key": value})
    assert yaml.safe_load(text) == {"key": value}
    if value[0].isdigit():
        assert f"'{value}'" in text
