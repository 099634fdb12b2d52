"""The one exception of the benchmarks."""

from __future__ import annotations


class BenchError(Exception):
    """Why there is no figure, and what to do about it, in one line for a person."""
