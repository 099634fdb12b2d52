"""A module in deep_ep's place: its signatures and its documented checks, over gloo on the CPU.

It moves rows for real, by another backend, so that an adapter that maps an argument wrongly gives wrong sums and not
only another recording. What deep_ep 2.1.0 asserts is asserted here; calls are kept in `ElasticBuffer.calls`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from moerl_kernels.backends.alltoall import NcclAllToAll
from moerl_kernels.config import EpConfig
from moerl_kernels.group import EpGroup

__version__ = "2.1.0"
MIB2 = 2 << 20


@dataclass
class EPHandle:
    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Any
    route: Any  # the stand-in's own
    mover: Any


class EventOverlap:
    def current_stream_wait(self) -> None:
        """Nothing runs elsewhere."""


class ElasticBuffer:
    """deep_ep.ElasticBuffer as documented for 2.1.0."""

    calls: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    gin_type: ClassVar[int] = 0  # NCCL without RDMA

    def __init__(
        self, group: Any, num_bytes: Any = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0,
        hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False,
        allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True, sl_idx: int = 3, num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False,
    ) -> None:  # fmt: skip
        assert group is not None, "group"
        assert num_bytes is None or num_bytes % MIB2 == 0
        assert num_topk <= 32
        assert hidden * (1 if use_fp8_dispatch else 2) % 16 == 0
        if self.gin_type == 0:
            assert os.environ.get("EP_DISABLE_GIN") == "1", "NCCL GIN is unavailable"
        self.calls.append(("create", {k: v for k, v in locals().items() if k not in ("self", "group")}))
        self._group, self._tokens, self._hidden = group, num_max_tokens_per_rank, hidden
        self._topk, self._fp8, self._deterministic = num_topk, use_fp8_dispatch, deterministic
        self._explicit, self._gone = explicitly_destroy, False

    def destroy(self) -> None:
        assert self._explicit
        assert not self._gone
        self._gone = True
        self.calls.append(("destroy", {}))

    def dispatch(
        self, x: Any, topk_idx: Any = None, topk_weights: Any = None, cumulative_local_expert_recv_stats: Any = None,
        num_experts: Any = None, num_max_tokens_per_rank: Any = None, expert_alignment: Any = None, num_sms: int = 0,
        num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: Any = None,
        do_handle_copy: bool = True, do_cpu_sync: Any = None, do_expand: bool = False, do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> Any:  # fmt: skip
        assert not self._gone
        given = {k: v for k, v in locals().items() if k != "self"}
        self.calls.append(("dispatch", given))
        assert previous_event is None or allocate_on_comm_stream
        rows, scales = x if isinstance(x, tuple) else (x, None)
        assert (scales is not None) == self._fp8
        assert rows.dtype == (torch.float8_e4m3fn if self._fp8 else torch.bfloat16)
        assert rows.is_contiguous()
        assert rows.shape[1] == self._hidden
        if handle is None:
            assert topk_idx is not None
            assert topk_idx.dtype == torch.int64
            assert topk_idx.is_contiguous()
            assert topk_idx.shape == (rows.shape[0], self._topk)
            assert num_experts is not None
            assert num_max_tokens_per_rank == self._tokens
            assert rows.shape[0] <= num_max_tokens_per_rank
            handle = self._new_handle(topk_idx, num_experts, expert_alignment or 1, do_expand, do_cpu_sync is not False)
        else:
            assert topk_idx is None
            assert do_cpu_sync is None
            assert cumulative_local_expert_recv_stats is None
            assert num_sms, "get_theoretical_num_sms(num_experts=None)"
            assert num_experts in (None, handle.num_experts)
            assert expert_alignment in (None, handle.expert_alignment)
            assert num_max_tokens_per_rank in (None, handle.num_max_tokens_per_rank)
            assert do_expand == handle.do_expand
        if topk_weights is not None:
            assert topk_weights.dtype == torch.float32
            assert topk_weights.shape == handle.topk_idx.shape
        mover, route = handle.mover, handle.route
        received = mover._push(rows, route).finish()
        got = received if scales is None else (received, mover._push(scales, route).finish())
        weights = None if topk_weights is None else mover._push_slots(topk_weights, route)
        local_idx = None if handle.do_expand else mover._local_idx(route)
        return got, local_idx, weights, handle, EventOverlap()

    def combine(
        self, x: Any, handle: Any, topk_weights: Any = None, bias: Any = None, num_sms: int = 0, num_qps: int = 0,
        previous_event: Any = None, previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False,
    ) -> Any:  # fmt: skip
        assert not self._gone
        self.calls.append(("combine", {k: v for k, v in locals().items() if k != "self"}))
        assert x.dtype == torch.bfloat16
        assert x.is_contiguous()
        assert self._hidden % 256 == 0
        assert x.shape == (handle.route.rows, self._hidden)
        out = handle.mover._pull(x, handle.route).finish()
        weights = None
        if topk_weights is not None:
            assert topk_weights.dtype == torch.float32
            assert topk_weights.dim() == (1 if handle.do_expand else 2)
            weights = handle.mover._pull_slots(topk_weights, handle.route)
        return out, weights, EventOverlap()

    def _new_handle(self, topk_idx: Any, num_experts: int, alignment: int, expand: bool, sync: bool) -> EPHandle:
        config = EpConfig(
            num_experts=num_experts, top_k=self._topk, hidden=self._hidden, max_tokens_per_rank=self._tokens,
            layout="expert_major" if expand else "compact", alignment=alignment if expand else 1,
            size_mode="exact" if sync else "static",
        )  # fmt: skip
        mover = NcclAllToAll(config, EpGroup.of(self._group))
        headers = mover._headers(topk_idx, torch.tensor(0)) if sync else None
        route = mover._route(topk_idx, headers)
        return EPHandle(expand, num_experts, alignment, self._tokens, 20, topk_idx, route, mover)
