"""reverse-4: answer four letters in reverse order.

The smallest task that needs attention over positions and cannot be learnt from token frequencies; 4096 prompts, of
which a quarter is held out. A tiny Qwen3-MoE learns it from random weights in a few hundred iterations of GRPO.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .task import Score, TaskError, is_heldout, position_score

PAD, BOS, SEP, EOS = 0, 1, 2, 3
FIRST_LETTER = 4
_MOST_PROMPTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Reverse:
    """Prompt `BOS l1 .. ln SEP`, answer `ln .. l1`, of fixed length."""

    length: int = 4
    letters: int = 8
    heldout_fraction: float = 0.25
    seed: int = 0

    @staticmethod
    def from_options(options: Mapping[str, str], *, seed: int, uri: str) -> Reverse:
        """The task of builtin://reverse-4?length=4&letters=8&heldout=0.25. TaskError names a bad option."""
        unknown = set(options) - {"length", "letters", "heldout"}
        if unknown:
            raise TaskError(f"{uri}: unknown option {min(unknown)!r}; there are length, letters, heldout")
        try:
            length, letters = int(options.get("length", "4")), int(options.get("letters", "8"))
            heldout = float(options.get("heldout", "0.25"))
        except ValueError as error:
            raise TaskError(f"{uri}: {error}") from error
        if not (1 <= length <= 64 and 2 <= letters <= 64 and 0.0 <= heldout <= 0.9):
            raise TaskError(f"{uri}: length is 1..64, letters 2..64, heldout 0..0.9")
        return Reverse(length=length, letters=letters, heldout_fraction=heldout, seed=seed)

    @property
    def name(self) -> str:
        """reverse-<length>"""
        return f"reverse-{self.length}"

    @property
    def vocabulary_size(self) -> int:
        """Four special tokens and the letters."""
        return FIRST_LETTER + self.letters

    @property
    def answer_length(self) -> int:
        """As many tokens as letters in the prompt."""
        return self.length

    def prompt(self, cursor: int) -> list[int]:
        """Drawn evenly from the prompts that are not held out, by (seed, cursor) alone."""
        draw = random.Random(f"reverse:{self.seed}:{cursor}")  # noqa: S311  (reproducible, not secret)
        while True:
            prompt = self._around(draw.randrange(self.letters) for _ in range(self.length))
            if not is_heldout(prompt, self.heldout_fraction):
                return prompt

    def heldout(self, limit: int) -> list[list[int]]:
        """Held-out prompts in a mixed order that depends on nothing but the task."""
        if self.letters**self.length <= _MOST_PROMPTS:
            every = itertools.product(range(self.letters), repeat=self.length)
            found = [p for letters in every if is_heldout(p := self._around(letters), self.heldout_fraction)]
            random.Random("heldout").shuffle(found)  # noqa: S311
            return found[:limit]
        return self._drawn_heldout(limit)

    def score(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Score:
        """Compare with the prompt's letters, last first."""
        if len(prompt_ids) != self.length + 2 or prompt_ids[0] != BOS or prompt_ids[-1] != SEP:
            raise TaskError(f"not a prompt of {self.name}: {list(prompt_ids)[:16]}")
        return position_score(list(prompt_ids[-2:0:-1]), output_ids)

    def _around(self, letters: Iterable[int]) -> list[int]:
        return [BOS, *(FIRST_LETTER + letter for letter in letters), SEP]

    def _drawn_heldout(self, limit: int) -> list[list[int]]:
        if self.heldout_fraction == 0.0:
            return []
        draw = random.Random("heldout")  # noqa: S311
        found: dict[tuple[int, ...], list[int]] = {}
        while len(found) < limit:
            prompt = self._around([draw.randrange(self.letters) for _ in range(self.length)])
            if is_heldout(prompt, self.heldout_fraction):
                found[tuple(prompt)] = prompt
        return list(found.values())
