"""Where the demo's manifests come from: the examples that users read."""

from __future__ import annotations

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
