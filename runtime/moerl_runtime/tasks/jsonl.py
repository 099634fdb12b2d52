"""A dataset of one's own: JSON lines with prompt and answer as token ids.

{"prompt_ids": [1, 5, 6, 2], "answer_ids": [6, 5]}          held out by hash (a quarter)
{"prompt_ids": [1, 7, 6, 2], "answer_ids": [6, 7], "split": "heldout"}   or said so: "train" or "heldout"
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .task import Score, TaskError, is_heldout, position_score

HELDOUT_FRACTION = 0.25


@dataclass(frozen=True)
class JsonLines:
    """A finite dataset; each epoch goes through the training prompts once, in an order of its own."""

    name: str
    train: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]
    answers: dict[tuple[int, ...], tuple[int, ...]]
    seed: int

    @staticmethod
    def parse(lines: Iterable[str], *, seed: int, uri: str) -> JsonLines:
        """Read the lines. TaskError names the line at fault."""
        train: list[tuple[int, ...]] = []
        held: list[tuple[int, ...]] = []
        answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            prompt, answer, split = _row(line, f"{uri}, line {number}")
            if prompt in answers:
                raise TaskError(f"{uri}, line {number}: this prompt came before")
            answers[prompt] = answer
            (held if split == "heldout" else train).append(prompt)
        if not train:
            raise TaskError(f"{uri}: no training prompt")
        return JsonLines(name=uri.rsplit("/", 1)[-1], train=tuple(train), held=tuple(held), answers=answers, seed=seed)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return 1 + max(max((*prompt, *answer)) for prompt, answer in self.answers.items())

    @property
    def answer_length(self) -> int:
        """The longest answer."""
        return max(len(answer) for answer in self.answers.values())

    def prompt(self, cursor: int) -> list[int]:
        """The prompt at a cursor: epochs one after the other, each in its own order."""
        epoch, place = divmod(cursor, len(self.train))
        return list(self.train[_order(self.seed, epoch, len(self.train))[place]])

    def heldout(self, limit: int) -> list[list[int]]:
        """The first held-out prompts of the file."""
        return [list(prompt) for prompt in self.held[:limit]]

    def score(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Score:
        """Compare with the line's answer."""
        answer = self.answers.get(tuple(prompt_ids))
        if answer is None:
            raise TaskError(f"not a prompt of {self.name}: {list(prompt_ids)[:16]}")
        return position_score(answer, output_ids)


def read_lines(uri: str) -> list[str]:
    """The lines of a file:// or s3:// object. TaskError if it cannot be read."""
    parts = urlsplit(uri)
    try:
        if parts.scheme == "file":
            return Path(unquote(parts.path)).read_text().splitlines()
        return _read_s3(parts.netloc, parts.path.lstrip("/")).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{uri} cannot be read: {error}") from error


def _read_s3(bucket: str, key: str) -> bytes:
    import boto3  # only for a dataset on S3: it costs 30 MB and half a second
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        body: bytes = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        return body
    except (BotoCoreError, ClientError) as error:
        raise TaskError(f"s3://{bucket}/{key} cannot be read: {error}") from error


def _row(line: str, place: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    try:
        row: Any = json.loads(line)
        prompt, answer = tuple(row["prompt_ids"]), tuple(row["answer_ids"])
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(f"{place}: needs prompt_ids and answer_ids ({error})") from error
    if not prompt or not answer or not all(isinstance(i, int) and 0 <= i < 2**31 for i in (*prompt, *answer)):
        raise TaskError(f"{place}: prompt_ids and answer_ids are lists of token ids")
    split = row.get("split") or ("heldout" if is_heldout(prompt, HELDOUT_FRACTION) else "train")
    if split not in ("train", "heldout"):
        raise TaskError(f"{place}: split is train or heldout, not {split!r}")
    return prompt, answer, split


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> list[int]:
    order = list(range(size))
    random.Random(f"jsonl:{seed}:{epoch}").shuffle(order)  # noqa: S311  (reproducible, not secret)
    return order
