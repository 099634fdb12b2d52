"""The learning rate over a run."""

from __future__ import annotations

import pytest

from moerl_runtime.trainer.learner import learning_rate_share

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("step", "share"), [(1, 1.0), (50, 1.0), (75, 0.55), (100, 0.1), (120, 0.1)])
def test_constant_then_falling_to_a_tenth(step: int, share: float) -> None:
    assert learning_rate_share(step, 100) == pytest.approx(share)


def test_it_never_rises() -> None:
    shares = [learning_rate_share(step, 7) for step in range(1, 8)]
    assert shares == sorted(shares, reverse=True)
