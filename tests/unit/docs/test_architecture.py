"""The architecture page and its picture name only files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# `core/plan.py`, `README.md`, `aws/`, `locks/*.txt`, or an image that the page links to.
_PATH = re.compile(r"(?<![\w/:.*-])(?:[\w.*-]+/)*[\w.*-]+(?:\.(?:py|md|svg|txt|toml|ya?ml|sh)\b|/(?=[\s:`&<)]))")


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/architecture.svg"])
def test_every_path_named_exists(root: Path, page: str) -> None:
    named = set(_PATH.findall((root / page).read_text()))
    assert len(named) >= 5, f"too few paths found in {page}: {named}"
    folders = (root, root / "docs", root / "operator" / "moerl_operator")
    missing = {path for path in named if not any(any(folder.glob(path.rstrip("/"))) for folder in folders)}
    assert not missing, f"{page} names what does not exist: {sorted(missing)}"
