"""Where the demo's manifests come from: the examples that users read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from moerl_local.demo.errors import DemoError

CHECKOUT = Path(__file__).resolve().parents[3]
EXAMPLE = CHECKOUT / "examples" / "reverse.yaml"
CHART = CHECKOUT / "charts" / "moerl-operator"


def example(path: Path = EXAMPLE) -> dict[str, Any]:
    """The MoERLJob of an example file.

    Raises:
        DemoError: the file is missing or holds no MoERLJob.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except FileNotFoundError as error:
        raise DemoError(f"{path} is missing: the demo runs from a checkout of the repository") from error
    except yaml.YAMLError as error:
        raise DemoError(f"{path} is no YAML: {error}") from error
    found = [document for document in documents if document and document.get("kind") == "MoERLJob"]
    if not found:
        raise DemoError(f"{path} holds no MoERLJob")
    job: dict[str, Any] = found[0]
    return job


def example_dataset(path: Path = EXAMPLE) -> str:
    """The example's prompts."""
    return str(example(path)["spec"]["storage"]["dataset"])


def dump(document: dict[str, Any]) -> str:
    """YAML that kubectl reads as this document: PyYAML leaves '3e-3' bare, which other parsers take for a number."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False))


class _Dumper(yaml.SafeDumper):
    """Safe dumper with quotes around whatever looks like a number."""


def _string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "'" if re.fullmatch(r"[-+0-9.eE_xob]+", value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _string)
