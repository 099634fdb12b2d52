"""Which actions of a plan may be under way at once, and doing so with a bound.

A job has some twenty children. One after another they cost twenty round trips to the API server; children of one
stage do not depend on each other, so they go together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import groupby
from typing import Any, TypeVar

from moerl_operator.core.world import Action, ApplyChild, CreateChild, DeleteChild

T = TypeVar("T")

# Workloads come after what their pods mount, servers after gangs, whose pods are many and take longest to place; a
# RoleBinding after its Role, which the server looks up.
_STAGES = {"RoleBinding": "bindings", "Job": "gangs", "Deployment": "servers", "StatefulSet": "servers"}


def batches(actions: Sequence[Action]) -> list[tuple[Action, ...]]:
    """The actions in order, neighbours that may be under way at once in one tuple."""
    numbered = [(_stage(action) or f"alone {i}", action) for i, action in enumerate(actions)]
    return [tuple(action for _, action in group) for _, group in groupby(numbered, key=lambda item: item[0])]


def _stage(action: Action) -> str | None:
    """The name of the stage, None for an action that nothing else may overlap."""
    if isinstance(action, CreateChild | ApplyChild):
        return _STAGES.get(str(action.obj["kind"]), "support")
    if isinstance(action, DeleteChild):
        return "deletions"
    return None


async def gathered(work: Sequence[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """Results in the order of `work`, at most `at_once` running. All are finished before the first error is raised."""
    slots = asyncio.Semaphore(at_once)

    async def one(task: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await task

    results = await asyncio.gather(*(one(task) for task in work), return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
