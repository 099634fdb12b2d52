"""What of a plan may be under way at once."""

from __future__ import annotations

import asyncio

import pytest

from moerl_operator.control.batches import batches, gathered
from moerl_operator.core.world import ApplyChild, CreateChild, DeleteChild, ScaleNodeGroup, SetFinalizer


def _apply(kind: str, name: str = "x") -> ApplyChild:
    return ApplyChild({"kind": kind, "metadata": {"name": name}})


def test_children_of_one_stage_go_together_and_stages_keep_their_order() -> None:
    """What pods mount, gangs, servers, the rest; a binding after its Role, which the server looks up."""
    actions = (
        SetFinalizer(True),
        _apply("ConfigMap"),
        CreateChild({"kind": "Secret", "metadata": {"name": "x"}}),
        CreateChild({"kind": "Job", "metadata": {"name": "x"}}),
        CreateChild({"kind": "Job", "metadata": {"name": "y"}}),
        _apply("StatefulSet"),
        _apply("Deployment"),
        _apply("Role"),
        _apply("RoleBinding"),
    )
    assert [len(batch) for batch in batches(actions)] == [1, 2, 2, 2, 1, 1]
    assert tuple(action for batch in batches(actions) for action in batch) == actions


def test_aws_actions_are_never_under_way_with_another() -> None:
    """One mutation at a time per node group."""
    actions = (ScaleNodeGroup("g", "a", 1), ScaleNodeGroup("h", "b", 1))
    assert [len(batch) for batch in batches(actions)] == [1, 1]


def test_a_creation_never_overtakes_a_deletion_before_it() -> None:
    """The new attempt comes before the old one's deletion, and neither moves."""
    gone = DeleteChild("batch/v1", "Job", "a1", "uid")
    actions = (_apply("Job", "a2"), gone, gone, _apply("Job", "b1"))
    assert [len(batch) for batch in batches(actions)] == [1, 2, 1]


async def test_gathered_keeps_order_and_bound() -> None:
    """Results as asked for, never more than the bound at a time."""
    running, most = 0, 0

    async def work(i: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - i))
        running -= 1
        return i

    assert await gathered([work(i) for i in range(5)], at_once=2) == [0, 1, 2, 3, 4]
    assert most == 2


async def test_an_error_is_raised_after_the_others_have_finished() -> None:
    """Nothing of a round goes on behind the next one's back."""
    finished = []

    async def bad() -> None:
        raise ValueError("bad")

    async def slow() -> None:
        await asyncio.sleep(0.01)
        finished.append(True)

    with pytest.raises(ValueError, match="bad"):
        await gathered([bad(), slow()], at_once=8)
    assert finished
