"""What a task is, and how a dataset URI becomes one.

Every process derives the prompt from the dataset cursor alone, so the buffer carries cursors, not prompts, and a run
draws the same prompts again after a restart. Training never draws a held-out prompt: the split is a hash of the prompt,
the same for every job, seed and process.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit


class TaskError(ValueError):
    """The dataset cannot be used; one line says what and where."""


@dataclass(frozen=True, slots=True)
class Score:
    """`reward` in [0, 1] is dense: the fraction of right positions. `exact` is the figure that is reported."""

    reward: float
    exact: bool


class Task(Protocol):
    """Prompts and scores, as token ids."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this."""

    @property
    def answer_length(self) -> int:
        """Tokens of the longest right answer."""

    def prompt(self, cursor: int) -> list[int]:
        """The training prompt of a dataset cursor (0, 1, ...), never a held-out one."""

    def heldout(self, limit: int) -> list[list[int]]:
        """Up to `limit` prompts that training never draws, always the same ones."""

    def score(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Score:
        """Score one response. TaskError for a prompt that is not of this task."""


def load(uri: str, *, seed: int) -> Task:
    """The task of a dataset URI: builtin://<name>?..., or JSON lines at file:// or s3://."""
    from .jsonl import JsonLines, read_lines
    from .reverse import Reverse

    parts = urlsplit(uri)
    if parts.scheme == "builtin":
        if parts.netloc not in ("reverse", "reverse-4"):
            raise TaskError(f"{uri}: no built-in task {parts.netloc!r}; there is reverse-4")
        return Reverse.from_options(dict(parse_qsl(parts.query, strict_parsing=bool(parts.query))), seed=seed, uri=uri)
    if parts.scheme in ("file", "s3"):
        return JsonLines.parse(read_lines(uri), seed=seed, uri=uri)
    raise TaskError(f"{uri}: a dataset is builtin://, file:// or s3://")


def is_heldout(prompt_ids: Sequence[int], fraction: float) -> bool:
    """Whether a prompt belongs to the held-out `fraction`: by hash, so no list has to be agreed on."""
    digest = hashlib.sha256(array("i", prompt_ids).tobytes()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def position_score(answer: Sequence[int], output: Sequence[int]) -> Score:
    """Fraction of positions that are right; tokens beyond the answer count as wrong positions."""
    right = sum(1 for a, b in zip(answer, output, strict=False) if a == b)
    length = max(len(answer), len(output))
    return Score(reward=right / length if length else 1.0, exact=list(answer) == list(output))
