"""The manifest that the README explains is one that works: the example's, with comments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from moerl_operator.api.job import Job


def test_the_manifest_of_the_readme_is_the_example(root: Path) -> None:
    """It is accepted as it stands, and says nothing that examples/reverse.yaml does not say."""
    text = (root / "README.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    shown = next(block for block in blocks if isinstance(block, dict) and block.get("kind") == "MoERLJob")
    Job.model_validate({"spec": shown["spec"]})
    example = yaml.safe_load((root / "examples" / "reverse.yaml").read_text())
    defaults = Job.model_validate({"spec": example["spec"]}).wire()["spec"]
    for path, value in _leaves(shown["spec"]):
        if "instanceTypes" in path:  # the README shows fewer of them
            continue
        assert _at(defaults, path) == value, f"README says {path} {value}, the example {_at(defaults, path)}"


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, key))]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [leaf for i, inner in enumerate(value) for leaf in _leaves(inner, (*path, i))]
    return [(path, value)]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
