"""The NVLink protocol explored in full: sound as it is, and unsound without any one of its fences, waits and credits.

Three operations at least, two or three ranks, one or two blocks each; consumers are as slow and stores as late as they
can be. `zero tokens` has a combine from which one rank receives nothing, so that nothing but a credit holds it back
from overwriting what a slow peer has not read.
"""

from __future__ import annotations

import re

import pytest

from support.protocol_model import ELEMENTS, Op, Scenario, explore


def dispatch(*items: int) -> Op:
    return Op(items, note=True)


def combine(*items: int) -> Op:
    return Op(items, joint=True)


SCENARIOS = {
    "two ranks": Scenario(2, 1, (dispatch(1, 1), combine(1, 1), dispatch(1, 1)), halves=2),
    "zero tokens": Scenario(2, 1, (dispatch(1, 1), combine(0, 1), dispatch(1, 1)), halves=2),
    "two blocks": Scenario(2, 2, (dispatch(1, 1), combine(0, 1), dispatch(1, 1))),
    "a repeated dispatch": Scenario(2, 2, (Op((2, 1)), combine(0, 1), Op((1, 1)))),
    # Item 1 is used by the first and the last operation alone, whose epochs are equal modulo 4.
    "wrap": Scenario(2, 1, (dispatch(2, 1), combine(1, 1), combine(1, 1), combine(1, 1), dispatch(2, 1)), 4, 2),
    "three ranks": Scenario(3, 1, (dispatch(1, 1, 1), combine(0, 1, 1), dispatch(1, 0, 1))),
    "a rank that dies": Scenario(2, 2, (dispatch(1, 1), combine(1, 1), dispatch(1, 1)), dies=(1, 1)),
    "time-outs": Scenario(2, 1, (dispatch(1, 1), combine(1, 1), dispatch(1, 1)), late=True),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_protocol_is_sound(name: str) -> None:
    found = explore(SCENARIOS[name])
    assert not found.bad, "\n".join([found.bad, *found.steps])
    assert found.states > 500, "it was explored at all"


# Which scenario shows that an element is needed, and what goes wrong without it.
NEEDED = {
    "send.release": ("two ranks", "torn rows"),
    "note.release": ("two ranks", "note of operation 0"),
    "receive.acquire": ("two ranks", "had read rows before they were there"),
    "note.acquire": ("two ranks", "had read a note before it was there"),
    "credit.wait": ("zero tokens", "deadlock|reads rows of operation 2|torn"),
    "credit.last": ("two blocks", "deadlock|reads rows of operation 2"),
    "credit.release": ("three ranks", "deadlock"),
    "done.release": ("two blocks", "reads rows of operation 2"),
    "flag.clear": ("wrap", "op 4 reads rows of operation 0"),
    "hello.clear": ("wrap", "op 4 reads rank 0's note of operation 0"),
    "poison.check": ("a rank that dies", "deadlock"),
}


def test_every_element_is_tried() -> None:
    assert set(NEEDED) == set(ELEMENTS)


@pytest.mark.parametrize("element", ELEMENTS)
def test_it_fails_without(element: str) -> None:
    scenario, words = NEEDED[element]
    found = explore(SCENARIOS[scenario], without=element)
    assert re.search(words, found.bad), f"{found.states} states: {found.bad or 'nothing was found'}"
    assert found.steps, "the way to it is told"
