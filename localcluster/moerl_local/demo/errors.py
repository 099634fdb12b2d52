"""The one exception of the demo."""

from __future__ import annotations


class DemoError(Exception):
    """What went wrong and what to do about it, in one line for a person."""
