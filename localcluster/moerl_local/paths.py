"""The two folders outside the checkout that the local tools write into.

They are kept apart because they have different lives: the cache can be deleted at any time and only
costs time, the state describes processes that may be running.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Built programs, images and wheels, keyed by what they are built from (`MOERL_CACHE`)."""
    return _dir("MOERL_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """The state of running clusters, one folder per cluster name (`MOERL_STATE`)."""
    return _dir("MOERL_STATE", "XDG_STATE_HOME", ".local/state")


def _dir(own: str, xdg: str, fallback: str) -> Path:
    if value := os.environ.get(own):
        return Path(value).expanduser().absolute()
    base = os.environ.get(xdg)
    return (Path(base) if base else Path.home() / fallback).absolute() / "moerl"
