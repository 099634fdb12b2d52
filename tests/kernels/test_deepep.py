"""The DeepEP adapter against a stand-in that enforces deep_ep's documented signatures and checks; never run with it.

The stand-in moves rows over gloo, so what comes out is compared with Reference as for every other backend.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from moerl_kernels import EpConfig, EpConfigError, EpGroup, EpMismatch, EpUnavailable, create
from moerl_kernels.backends import deepep, deepep_probe
from moerl_kernels.backends.deepep import DeepEP
from support import deep_ep_stand_in
from support.deep_ep_stand_in import ElasticBuffer
from support.ranks import run

pytestmark = pytest.mark.torch

BASE = EpConfig(num_experts=8, top_k=3, hidden=256, max_tokens_per_rank=6)
SHAPES = [
    replace(BASE, alignment=a, size_mode=m) for a, m in ((1, "exact"), (8, "exact"), (128, "exact"), (1, "static"))
] + [replace(BASE, layout="compact", size_mode=m) for m in ("exact", "static")]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """deep_ep is importable; the ranks are forks of this process."""
    monkeypatch.setitem(sys.modules, "deep_ep", deep_ep_stand_in)  # type: ignore[arg-type]
    monkeypatch.delenv("EP_DISABLE_GIN", raising=False)
    ElasticBuffer.calls.clear()


def tensors(config: EpConfig, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    tokens = (5, 0, 6, 3)[rank]
    idx = torch.rand(tokens, config.num_experts, generator=generator).topk(config.top_k).indices
    idx[torch.rand(idx.shape, generator=generator) < 0.2] = -1
    x = torch.randn(tokens, config.hidden, generator=generator).to(config.dtype)
    return x, idx, torch.rand(tokens, config.top_k, generator=generator)


def exchange(backend: Any, config: EpConfig) -> dict[str, torch.Tensor]:
    """Forward, backward and a second dispatch along the handle."""
    x, idx, weights = tensors(config, backend.group.rank)
    x.requires_grad_()
    weights.requires_grad_()
    got = backend.dispatch(x, idx, weights)
    used = torch.zeros(got.rows.shape[0], dtype=torch.bool)
    for start, count in zip(got.starts.tolist(), got.counts.tolist(), strict=True):
        used[start : start + count] = True
    y = torch.where(used.unsqueeze(1), got.rows * 2, 0)
    if config.layout == "expert_major":
        out = backend.combine(y, got.handle, weights=torch.where(used, got.weights, 0))
    else:
        y = y * torch.where(got.local_idx >= 0, got.weights, 0).sum(-1, keepdim=True).to(y.dtype)
        out = backend.combine(y, got.handle)
    out.float().square().sum().backward()
    again = backend.dispatch(x.detach(), None, weights.detach(), handle=got.handle)
    backend.check()
    return {
        "counts": got.counts, "starts": got.starts, "out": out.detach(), "grad_x": x.grad, "grad_weights": weights.grad,
        "rows": torch.where(used.unsqueeze(1), got.rows.detach(), 0),
        "again": torch.where(used.unsqueeze(1), again.rows, 0),
    }  # fmt: skip


def compare(config: EpConfig) -> list[str]:
    backend = DeepEP(config, EpGroup.of())
    have = exchange(backend, config)
    want = exchange(create("Reference", replace(config, size_mode="exact")), replace(config, size_mode="exact"))
    assert torch.equal(have["rows"], have["again"])
    for key in ("counts", "starts"):
        assert torch.equal(have[key], want[key]), key
    n = want["rows"].shape[0]
    assert torch.equal(have["rows"][:n], want["rows"])
    for key in ("out", "grad_x", "grad_weights"):
        torch.testing.assert_close(have[key].float(), want[key].float(), rtol=0.05, atol=0.05, msg=key)
    backend.close()
    return [name for name, _ in ElasticBuffer.calls]


@pytest.mark.parametrize("config", SHAPES, ids=lambda c: f"{c.layout}-{c.alignment}-{c.size_mode}")
def test_equals_reference_over_the_stand_in(config: EpConfig) -> None:
    for calls in run(2, compare, config):
        assert calls[0] == "create"
        assert calls[-1] == "destroy"
        # One dispatch carries rows and weights; forward, gradient of combine, and the repeated one.
        assert calls.count("dispatch") == 3


def mapped(config: EpConfig) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    backend = DeepEP(config, EpGroup.of())
    x, idx, weights = tensors(config, backend.group.rank)
    got = backend.dispatch(x, idx.int(), weights)
    backend.dispatch(x, None, weights, handle=got.handle)
    backend.combine(torch.ones(got.rows.shape, dtype=torch.bfloat16), got.handle, weights=got.weights)
    calls = dict(enumerate(ElasticBuffer.calls))
    plain = [{k: v for k, v in calls[i][1].items() if v is None or type(v) in (bool, int)} for i in range(4)]
    weight_sum = calls[3][1]["x"].float().mean(1)
    assert torch.allclose(weight_sum, got.weights.to(torch.bfloat16).float()), "weights are multiplied in before"
    return plain[0], plain[1], plain[2], plain[3], backend.transport_report()


def test_arguments() -> None:
    config = replace(BASE, alignment=16, wire="fp8", scale_layout="tma_column_major")
    for create_, first, repeated, combine, report in run(2, mapped, config):
        assert create_ == {
            "num_bytes": None, "num_cpu_bytes": 0, "num_max_tokens_per_rank": 6, "hidden": 256, "num_topk": 3,
            "use_fp8_dispatch": True, "deterministic": True, "allow_hybrid_mode": False,
            "allow_multiple_reduction": True, "prefer_overlap_with_compute": True, "sl_idx": 3,
            "num_allocated_qps": 0, "num_cpu_timeout_secs": 300, "num_gpu_timeout_secs": 100,
            "explicitly_destroy": True,
        }  # fmt: skip
        for call in (first, repeated):
            assert (call["num_experts"], call["expert_alignment"], call["do_expand"]) == (8, 16, True)
            assert call["use_tma_aligned_col_major_sf"] is True
        assert (first["do_cpu_sync"], first["handle"], first["num_sms"]) == (True, None, 0)
        assert (repeated["do_cpu_sync"], repeated["num_sms"], repeated.get("topk_idx")) == (None, 20, None)
        assert combine["topk_weights"] is None
        assert report["versions"] == {"deep_ep": "2.1.0", "variant": "upstream"}
        assert (report["nodes"], report["gin_disabled"]) == (1, True), "GIN is off inside one domain, and it says so"


def shared(config: EpConfig) -> list[str]:
    first, second = DeepEP(config, EpGroup.of()), DeepEP(replace(config, alignment=8), EpGroup.of())
    other = DeepEP(replace(config, hidden=512), EpGroup.of())
    assert first._buffer is second._buffer
    assert other._buffer is not first._buffer
    first.close()
    assert [name for name, _ in ElasticBuffer.calls].count("destroy") == 0, "another still uses it"
    second.close()
    other.close()
    assert not deepep._BUFFERS
    return [name for name, _ in ElasticBuffer.calls]


def test_one_buffer_for_each_group_and_shape() -> None:
    for calls in run(2, shared, BASE):
        assert calls == ["create", "create", "destroy", "destroy"]


def refused(change: dict[str, Any]) -> str:
    try:
        DeepEP(replace(BASE, **change), EpGroup.of())
    except EpConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": torch.float32}, "moves bfloat16 rows"),
        ({"hidden": 384}, "not a multiple of 256"),
        ({"num_experts": 4096}, "at most 2048 experts"),
        ({"num_experts": 1024}, "at most 256 experts a rank"),
        ({"size_mode": "static", "capacity_rows": 4}, "leave capacity_rows out"),
    ],
)
def test_what_deep_ep_cannot_do_is_one_error_on_all_ranks(change: dict[str, Any], words: str) -> None:
    assert all(words in text for text in run(2, refused, change))


def test_one_rank_is_told() -> None:
    with pytest.raises(EpConfigError, match="at least two ranks"):
        DeepEP(BASE, EpGroup.of())


def split(_: Any) -> tuple[str, str | None]:
    group = EpGroup.of()
    deepep_probe.node = lambda: f"node-{group.rank}"
    if group.rank == 1:
        os.environ["EP_DISABLE_GIN"] = "1"
    first = refused({})
    os.environ.pop("EP_DISABLE_GIN", None)
    ElasticBuffer.gin_type = 2
    DeepEP(BASE, group)
    return first, os.environ.get("EP_DISABLE_GIN")


def test_gin_stays_on_between_nodes() -> None:
    for words, variable in run(2, split, None):
        assert "EP_DISABLE_GIN=1 on ranks [1]" in words
        assert "no path between them" in words
        assert variable is None


def differ(_: Any) -> str:
    group = EpGroup.of()
    deep_ep_stand_in.__version__ = f"2.{group.rank}.0"
    try:
        DeepEP(BASE, group)
    except EpMismatch as error:
        return str(error)
    return ""


def test_ranks_with_different_versions() -> None:
    assert all("deep_ep's deep_ep: 2.0.0 on ranks [0]; 2.1.0 on ranks [1]" in text for text in run(2, differ, None))


# --- probe -----------------------------------------------------------------------------------------------


def test_probe_without_deep_ep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deep_ep")
    support = DeepEP.probe()
    assert (support.ok, support.reasons) == (False, ("deep_ep is not installed",))
    assert not torch.cuda.is_initialized()


def spec(module: Any) -> Any:
    module.__spec__ = SimpleNamespace(name="deep_ep")
    return module


def test_probe_names_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    old = spec(ModuleType("deep_ep"))
    monkeypatch.setitem(sys.modules, "deep_ep", old)
    maps = (("libnccl", "/venv/libnccl.so.2"), ("libnccl", "/opt/nccl/libnccl.so.2"))
    monkeypatch.setattr(deepep_probe.libraries, "mapped", lambda: [SimpleNamespace(name=n, path=p) for n, p in maps])
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    support = DeepEP.probe()
    text = "\n".join(support.reasons)
    assert not support.ok
    assert "has no ElasticBuffer" in text
    assert "two NCCLs are mapped, and GIN would be off: /venv/libnccl.so.2, /opt/nccl/libnccl.so.2" in text
    assert "nvcc was not found" in text


def test_probe_of_an_nccl_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_ep", spec(ModuleType("deep_ep")))
    one = [SimpleNamespace(name="libnccl", path="/venv/libnccl.so.2")]
    monkeypatch.setattr(deepep_probe.libraries, "mapped", lambda: one)
    monkeypatch.setattr(deepep_probe, "nccl_code", lambda path: 22809)
    support = DeepEP.probe()
    assert any("is NCCL 22809, deep_ep needs at least 23004" in reason for reason in support.reasons)
    assert support.versions["nccl"] == "22809"


def test_signatures_are_looked_at() -> None:
    assert deepep_probe.missing(deep_ep_stand_in) == []

    class Old(ElasticBuffer):
        def combine(self, x: Any, handle: Any) -> Any:  # type: ignore[override]
            return x

    assert deepep_probe.missing(SimpleNamespace(ElasticBuffer=Old)) == [
        "deep_ep's ElasticBuffer.combine has no parameter topk_weights"
    ]


def test_an_import_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "deep_ep.py").write_text("raise ImportError('undefined symbol: ncclGetLsaDevicePointer')")
    monkeypatch.delitem(sys.modules, "deep_ep")
    monkeypatch.syspath_prepend(str(tmp_path))
    support = DeepEP.probe()
    assert support.reasons == ("deep_ep cannot be imported: ImportError: undefined symbol: ncclGetLsaDevicePointer",)


def unavailable(_: Any) -> str:
    try:
        create("DeepEP", BASE, replace(EpGroup.of(), device=torch.device("cuda")))
    except EpUnavailable as error:
        return str(error)
    return ""


def test_create_tells_every_reason_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deep_ep")
    words = "backend DeepEP cannot run: rank 0: deep_ep is not installed; rank 1: deep_ep is not installed"
    assert run(2, unavailable, None) == [words] * 2
