"""Tasks: the held-out split is clean, prompts depend on seed and cursor alone, scores are right, mistakes are named."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.tasks.jsonl import JsonLines
from moerl_runtime.tasks.reverse import Reverse
from moerl_runtime.tasks.task import TaskError, load

LETTERS = st.lists(st.integers(4, 11), min_size=4, max_size=4)


def test_training_never_draws_a_held_out_prompt() -> None:
    task = Reverse()
    held = {tuple(prompt) for prompt in task.heldout(10_000)}
    drawn = Counter(tuple(task.prompt(cursor)) for cursor in range(30_000))
    assert 900 < len(held) < 1150, "a quarter of 4096"
    assert not held & drawn.keys()
    assert len(drawn) > 0.99 * (4096 - len(held)), "all others are drawn"
    assert max(drawn.values()) < 40, "evenly"


def test_the_split_is_the_same_for_every_seed_and_the_order_is_not() -> None:
    one, other = Reverse(seed=1), Reverse(seed=2)
    assert one.heldout(64) == other.heldout(64)
    assert [one.prompt(c) for c in range(50)] == [Reverse(seed=1).prompt(c) for c in range(50)]
    assert [one.prompt(c) for c in range(50)] != [other.prompt(c) for c in range(50)]


@given(LETTERS, LETTERS)
def test_reward_is_the_fraction_of_right_positions(letters: list[int], output: list[int]) -> None:
    score = Reverse().score([1, *letters, 2], output)
    right = sum(a == b for a, b in zip(letters[::-1], output, strict=True))
    assert score.reward == right / 4
    assert score.exact == (right == 4)


def test_too_long_or_short_answers_are_never_exact() -> None:
    task = Reverse()
    assert task.score([1, 4, 5, 6, 7, 2], [7, 6, 5, 4, 4]).reward == 0.8
    assert not task.score([1, 4, 5, 6, 7, 2], [7, 6, 5, 4, 4]).exact
    assert not task.score([1, 4, 5, 6, 7, 2], [7, 6, 5]).exact


def test_a_task_too_large_to_list_still_has_held_out_prompts() -> None:
    task = Reverse(length=10, letters=8)
    held = task.heldout(50)
    assert len({tuple(prompt) for prompt in held}) == 50
    assert held == task.heldout(50)


def test_options() -> None:
    task = load("builtin://reverse-4?length=3&letters=5&heldout=0.5", seed=3)
    assert task == Reverse(length=3, letters=5, heldout_fraction=0.5, seed=3)
    assert (task.name, task.vocabulary_size, task.answer_length) == ("reverse-3", 9, 3)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("builtin://sort-3", "no built-in task 'sort-3'"),
        ("builtin://reverse-4?lenght=3", "unknown option 'lenght'"),
        ("builtin://reverse-4?length=x", "invalid literal"),
        ("builtin://reverse-4?length=0", r"length is 1\.\.64"),
        ("builtin://reverse-4?heldout=1", r"heldout 0\.\.0\.9"),
        ("http://x/y", "a dataset is builtin://, file:// or s3://"),
        ("file:///nowhere", "cannot be read"),
    ],
)
def test_mistakes_are_named(uri: str, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        load(uri, seed=0)
    assert uri in str(caught.value)


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"prompt_ids": [1, i], "answer_ids": [i, 2]} for i in range(100)]
    rows += [{"prompt_ids": [2, i], "answer_ids": [i], "split": "heldout"} for i in range(5)]
    path = tmp_path / "prompts with space.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    task = load(path.as_uri(), seed=1)
    assert isinstance(task, JsonLines)
    held = {tuple(prompt) for prompt in task.heldout(1000)}
    assert {(2, i) for i in range(5)} < held
    size = len(task.train)
    epochs = [[tuple(task.prompt(e * size + i)) for i in range(size)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(task.train)
    assert epochs[0] != epochs[1]
    assert not held & set(epochs[0])
    assert len(held) + size == 105
    assert task.score([1, 7], [7, 3]).reward == 0.5
    assert (task.vocabulary_size, task.answer_length) == (100, 2)
    with pytest.raises(TaskError, match="not a prompt of"):
        task.score([9, 9], [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: needs prompt_ids and answer_ids"),
        ('{"prompt_ids": [1]}', "answer_ids"),
        ('{"prompt_ids": ["a"], "answer_ids": [1]}', "lists of token ids"),
        ('{"prompt_ids": [1], "answer_ids": [1], "split": "test"}', "split is train or heldout, not 'test'"),
        ('{"prompt_ids": [5], "answer_ids": [1]}', "this prompt came before"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        JsonLines.parse(['{"prompt_ids": [5], "answer_ids": [1], "split": "train"}', line], seed=0, uri="file:///d")
