"""Loads the buffer's Lua scripts, one file each, with the shared prelude in front."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Literal

Name = Literal[
    "issue", "lease", "renew", "commit", "release", "fail", "begin", "requeue",
    "take", "settle", "finish", "cancel", "head", "audit",
]  # fmt: skip


@cache
def source(name: Name) -> str:
    """The script's text as the server gets it."""
    folder = files(__package__) / "lua"
    return f"{(folder / 'prelude.lua').read_text()}\n{(folder / f'{name}.lua').read_text()}"


@cache
def digest(name: Name) -> str:
    """What EVALSHA names the script by."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()
