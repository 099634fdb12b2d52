"""What a test does when a program that it needs is not on this machine."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without(obstacle: str) -> NoReturn:
    """Skip the test; in CI fail it, where everything must be there and a skipped test would look like a passed one."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must run this test, but {obstacle}")
    pytest.skip(obstacle)
