"""NVLink's protocol between processes that share memory, every kernel interpreted: words, wrap, time-outs, poison."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moerl_kernels import EpConfig, EpConfigError, EpError, EpGroup, EpTimeout, EpUnavailable, create
from moerl_kernels.nvlink import NVLink, loopback
from support.ranks import run

pytestmark = pytest.mark.torch

BASE = EpConfig(num_experts=6, top_k=2, hidden=8, max_tokens_per_rank=12, size_mode="static")


def made(config: EpConfig = BASE) -> NVLink:
    """The backend on this rank."""
    backend = create("NVLink", config, EpGroup.of())
    assert isinstance(backend, NVLink)
    return backend


def tensors(config: EpConfig, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, topk_idx, weights) of this rank; the number of tokens differs from seed to seed, and may be 0."""
    generator = torch.Generator().manual_seed(10 * seed + EpGroup.of().rank)
    tokens = int(torch.randint(0, config.max_tokens_per_rank + 1, (1,), generator=generator))
    idx = torch.rand(tokens, config.num_experts, generator=generator).topk(config.top_k).indices
    x = torch.randn(tokens, config.hidden, generator=generator).bfloat16()
    return x, idx, torch.rand(tokens, config.top_k, generator=generator)


def _start_at(backend: NVLink, epoch: int) -> None:
    engine, at = backend._engine, backend._layout.offsets["CREDIT"]
    engine.state[0] = epoch
    engine.memory.views[backend.group.rank][at : at + 4 * backend.group.size].view(torch.int32).fill_(epoch)
    backend.group.barrier()


def _across_the_wrap() -> tuple[bool, int]:
    group, backend = EpGroup.of(), made()
    oracle = create("Reference", replace(BASE, size_mode="exact"), group)
    _start_at(backend, -7)
    same = True
    for seed in range(5):
        x, idx, weights = tensors(BASE, seed)
        got, want = backend.dispatch(x, idx, weights), oracle.dispatch(x, idx, weights)
        n = want.rows.shape[0]
        again = backend.dispatch(x, handle=got.handle).rows[:n]
        same &= torch.equal(got.rows[:n], want.rows) and torch.equal(again, want.rows)
        out = backend.combine(got.rows, got.handle, weights=got.weights)
        same &= torch.allclose(out, oracle.combine(want.rows, want.handle, weights=want.weights), rtol=0.02, atol=0.02)
    backend.check()
    epoch = int(backend._engine.state[0])
    backend.close()
    return same, epoch


def test_epochs_count_on_across_their_wrap() -> None:
    """From -7 (as u32: just below 2^32) through 0: 15 operations and a check later they stand at 9."""
    assert run(3, _across_the_wrap) == [(True, 9)] * 3


def _late_consumer() -> bool:
    """One rank receives late; the others may be one operation ahead of it, and wait for its credit before the next."""
    group, backend = EpGroup.of(), made()
    outputs = []
    for seed in range(4):
        x, idx, weights = tensors(BASE, seed)
        pending = backend.dispatch_start(x, idx, weights)
        if group.rank == 1:
            time.sleep(0.3)
        got = pending.finish()
        bits = got.rows.view(torch.int16)  # rows beyond the last hold anything, NaN included
        outputs.append((bits, bits.clone()))
    backend.check()
    return all(torch.equal(bits, copy) for bits, copy in outputs)  # owned: no later operation wrote to them


def test_a_late_consumer_loses_nothing() -> None:
    """And outputs belong to the caller."""
    assert run(2, _late_consumer) == [True, True]


def _one_is_absent() -> str:
    group, backend = EpGroup.of(), made()
    backend._engine.timeout = 0.5  # of the interpreter: 500 polls
    if group.rank != 1:
        backend.dispatch(*tensors(BASE, 1))
    else:
        time.sleep(3)
    with pytest.raises(EpTimeout) as raised:
        backend.check()
    backend.close()  # waits for nobody
    return str(raised.value)


def test_a_time_out_is_an_error_on_all_ranks() -> None:
    """Also on the one that was waited for; it names who gave up, whom it waited for, and in what."""
    for message in run(3, _one_is_absent):
        assert "for rank 1 in dispatch" in message


def _one_fails() -> tuple[str, float]:
    group, backend = EpGroup.of(), made()
    backend._engine.timeout = 1e6
    tensors_ = tensors(BASE, 1)
    began = time.monotonic()
    if group.rank == 1:

        def broken(*_: Any) -> None:
            raise RuntimeError("out of memory, say")

        backend._engine.dispatch = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="out of memory"):
            backend.dispatch(*tensors_)
    else:
        backend.dispatch(*tensors_)
    with pytest.raises(EpTimeout) as raised:
        backend.check()
    return str(raised.value), time.monotonic() - began


def test_a_rank_that_fails_before_its_launch_tells_the_others() -> None:
    """They do not wait for the time-out, which is a million seconds here."""
    for message, seconds in run(3, _one_fails):
        assert "rank 1 failed before it launched" in message
        assert seconds < 60


def _two_at_once() -> str:
    backend = made()
    x, idx, weights = tensors(BASE, 1)
    pending = backend.dispatch_start(x, idx, weights)
    with pytest.raises(EpError) as raised:
        backend.dispatch_start(x, idx, weights)
    with pytest.raises(EpError, match="one at a time"):
        backend.dispatch(x, idx, weights)
    pending.finish()
    backend.check()
    return str(raised.value)


def test_an_arena_carries_one_operation_at_a_time() -> None:
    """A second start before the first is finished is refused."""
    assert all("one at a time" in message for message in run(2, _two_at_once))


def test_what_does_not_fit_into_a_code_is_refused() -> None:
    """Expert and place share 31 bits."""
    config = EpConfig(num_experts=4096, top_k=8, hidden=8, max_tokens_per_rank=2**17)
    with pytest.raises(EpConfigError, match="lower max_tokens_per_rank"):
        create("NVLink", config, EpGroup(0, 1, torch.device("cpu")))


def _bad_environment(monkeypatched: str) -> str:
    import os

    if EpGroup.of().rank == 1:
        os.environ["MOERL_EP_TIMEOUT_S"] = monkeypatched
    with pytest.raises(EpUnavailable) as raised:
        made()
    return str(raised.value)


def test_what_one_rank_cannot_prepare_is_an_error_on_all() -> None:
    """Nobody waits for a rank that has given up in create."""
    messages = run(2, _bad_environment, "soon")
    assert messages[0] == messages[1]
    assert "rank 1: ValueError" in messages[0]


def _report() -> tuple[str, int]:
    backend = made()
    report = backend.transport_report()
    backend.close()
    return report["arena"], report["arenaBytes"]


def test_shared_memory_leaves_no_file_behind() -> None:
    """The report says how the arenas are shared, and how large each is."""
    reports = run(2, _report)
    assert [kind for kind, _ in reports] == ["shared memory"] * 2
    assert reports[0][1] > 2 * 12 * 16
    assert not list(Path("/dev/shm").glob("moerl-ep-*"))


def test_threads_meet() -> None:
    """What the one-GPU runs rely on: every thread gets everybody's value, and the first failure is raised."""

    def work(group: EpGroup) -> list[int]:
        total = group.any(torch.tensor([group.rank]))
        return [*group.gather_objects(group.rank), int(total)]

    assert loopback.run(3, work, device="cpu") == [[0, 1, 2, 2]] * 3
    with pytest.raises(EpConfigError, match="NVLink only"):
        loopback.run(1, lambda group: group.exchange(torch.zeros(1)), device="cpu")
