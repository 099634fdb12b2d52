"""DeepEP: an adapter of the user's own deep_ep (V2, ElasticBuffer), upstream's or AWS's fork for EFA.

Written against the signatures of deep_ep 2.1.0 and its documented semantics, and never run with it: tests use a
stand-in that enforces both. What differs from the other backends: rows inside one expert (expert_major) come in
DeepEP's order, which is repeatable (deterministic=True) and not the contract's; combine rounds once more per node.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moerl_kernels import fp8
from moerl_kernels.backend import Dispatched, EpBackend, Handle, Pending, Support, weighted
from moerl_kernels.backends import deepep_probe
from moerl_kernels.config import Capabilities, EpConfig
from moerl_kernels.errors import EpConfigError, EpError
from moerl_kernels.group import EpGroup, agree
from moerl_kernels.routing import Arrangement, align_up

MAX_EXPERTS, MAX_LOCAL_EXPERTS = 2048, 256


@dataclass(slots=True)
class _Extra:
    """ep: deep_ep's handle, there after the first dispatch. carry: weights that the next dispatch takes along."""

    topk_idx: Tensor
    ep: Any = None
    carry: Tensor | None = None
    weights: Tensor | None = None
    local_idx: Tensor | None = None


@dataclass(slots=True)
class _Shared:
    """One ElasticBuffer for all backends of one group and shape."""

    buffer: Any
    users: int = 0


# Making a buffer registers memory with every peer; SGLang PR #24443 lost 34 s a token by making them anew.
_BUFFERS: dict[Any, _Shared] = {}


@dataclass(frozen=True, slots=True)
class _Domain:
    """Whether all ranks can reach each other's memory over NVLink, which is taken to be one node."""

    nodes: int
    gin_disabled: bool = field(default=False)


class DeepEP(EpBackend):
    """dispatch and combine of deep_ep.ElasticBuffer."""

    name = "DeepEP"
    capabilities = Capabilities(
        layouts=frozenset({"expert_major", "compact"}),
        wires=frozenset({"same", "fp8"}),
        size_modes=frozenset({"exact", "static"}),
        graph_safe=True,
        autograd=True,
        devices=frozenset({"cuda"}),
        max_ranks=1024,
    )

    def __init__(self, config: EpConfig, group: EpGroup) -> None:
        """Raises EpConfigError for what deep_ep cannot do, EpMismatch if ranks run different deep_ep. A collective."""
        super().__init__(config, group)
        _refuse(config, group)
        self._module = deepep_probe.module()
        self._versions = deepep_probe.versions(self._module)
        agree(group, {f"deep_ep's {name}": value for name, value in self._versions.items()})
        self._domain = _domain(group)
        self._key = (group.process_group, config.max_tokens_per_rank, config.hidden, config.top_k, config.wire)
        shared = _BUFFERS.get(self._key)
        if shared is None:
            # The group has spoken above: a lazily made communicator would be null here (DeepEP issue #726).
            shared = _BUFFERS[self._key] = _Shared(self._make())
        shared.users += 1
        self._buffer = shared.buffer

    @classmethod
    def probe(cls) -> Support:
        """Whether a usable deep_ep with one NCCL is here; imports it, and touches no device."""
        return deepep_probe.probe()

    def close(self) -> None:
        """Destroy the buffer with its last user. A collective."""
        shared = _BUFFERS.get(self._key)
        if shared is not None and shared.buffer is self._buffer:
            shared.users -= 1
            if shared.users == 0:
                del _BUFFERS[self._key]
                shared.buffer.destroy()
        super().close()

    def transport_report(self) -> dict[str, Any]:
        """Adds versions, variant (upstream or AWS's fork) and whether GIN was switched off for one NVLink domain."""
        return super().transport_report() | {
            "versions": dict(self._versions),
            "nodes": self._domain.nodes,
            "gin_disabled": self._domain.gin_disabled,
            "gin_type_requested": os.environ.get("NCCL_GIN_TYPE"),
        }

    def _make(self) -> Any:
        config = self.config
        return self._module.ElasticBuffer(
            self.group.process_group,
            num_max_tokens_per_rank=config.max_tokens_per_rank,
            hidden=config.hidden,
            num_topk=config.top_k,
            use_fp8_dispatch=config.wire == "fp8",
            deterministic=True,
            allow_hybrid_mode=self._domain.nodes > 1,
            explicitly_destroy=True,
        )

    # --- what the base class asks for --------------------------------------------------------------------

    def dispatch_start(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        handle: Handle | None = None,
    ) -> Pending:
        """As in the base class; deep_ep sends rows and weights in one operation, so they are brought together."""
        if handle is not None:
            handle.extra.carry = topk_weights
        return super().dispatch_start(x, topk_idx, topk_weights, handle=handle)

    def _plan(
        self, x: Tensor, topk_idx: Tensor | None, topk_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Handle]:
        x, topk_weights, handle = super()._plan(x, topk_idx, topk_weights)
        handle.extra.carry = topk_weights
        return x, topk_weights, handle

    def _route(self, topk_idx: Tensor, headers: list[list[int]] | None) -> Handle:
        """deep_ep routes with its first dispatch; only the sizes are needed before."""
        config, group, experts = self.config, self.group, self.config.num_experts
        if headers is not None:
            table = torch.tensor(headers, dtype=torch.int64, device=topk_idx.device)
            sent, touched = table[:, 2 : 2 + experts], table[:, 2 + experts :]
        else:
            flat = topk_idx.flatten()
            mine = torch.zeros(experts, dtype=torch.int64, device=flat.device)
            mine.scatter_add_(0, flat.clamp(min=0), (flat >= 0).long())
            here = torch.arange(group.size, device=flat.device)
            owner = torch.where(topk_idx < 0, -1, topk_idx // self.experts_per_rank)
            reached = (owner.unsqueeze(-1) == here).any(1).sum(0)
            both = self._gather(torch.cat([mine, reached]))
            sent, touched = both[:, :experts], both[:, experts:]
        if config.layout == "expert_major":
            first = group.rank * self.experts_per_rank
            counts = sent[:, first : first + self.experts_per_rank].sum(0)
        else:
            counts = touched[:, group.rank]
        aligned = align_up(counts, config.alignment)
        starts, total = aligned.cumsum(0) - aligned, aligned.sum()
        rows = int(total) if headers is not None else config.rows(group.size)
        arrangement = Arrangement(topk_idx.new_empty(0), counts, starts, total)
        return Handle(topk_idx, arrangement, rows, _Extra(topk_idx.contiguous()))

    def _push(self, x: Tensor, handle: Handle) -> Pending:
        rows, _ = self._send(x, handle)
        return Pending(lambda: rows)

    def _dispatch_fp8(self, x: Tensor, topk_weights: Tensor | None, handle: Handle) -> Pending:
        if torch.is_grad_enabled() and x.requires_grad:
            raise EpConfigError("wire fp8 has no gradient; train with wire same")
        rows, scales = self._send(fp8.quantise(x), handle)
        weights = None if topk_weights is None else self._push_slots(topk_weights, handle)

        def finish() -> Dispatched:
            return self._dispatched(rows, scales, weights, handle)

        return Pending(finish)

    def _pull(self, rows: Tensor, handle: Handle, weights: Tensor | None = None) -> Pending:
        # deep_ep's combine is a plain sum: the router's weights are never multiplied in there.
        out, _, _ = self._buffer.combine(weighted(rows, weights).contiguous(), self._ep(handle))
        return Pending(lambda: out)

    def _push_slots(self, values: Tensor, handle: Handle) -> Tensor:
        extra: _Extra = handle.extra
        if extra.weights is None:
            raise EpError("DeepEP carries weights only together with the rows of a dispatch")
        out, extra.weights = extra.weights, None
        return out

    def _pull_slots(self, values: Tensor, handle: Handle) -> Tensor:
        nothing = values.new_zeros(handle.rows, self.config.hidden, dtype=torch.bfloat16)
        _, out, _ = self._buffer.combine(nothing, self._ep(handle), topk_weights=values.float().contiguous())
        return torch.where(handle.topk_idx >= 0, out, 0)

    def _local_idx(self, handle: Handle) -> Tensor | None:
        extra: _Extra = handle.extra
        return extra.local_idx

    # --- calls of deep_ep ----------------------------------------------------------------------------------

    def _send(self, x: Tensor | tuple[Tensor, Tensor], handle: Handle) -> tuple[Tensor, Tensor | None]:
        """One dispatch, along new routes or those of `handle`. Returns rows, and their scales with wire fp8."""
        config, extra = self.config, handle.extra
        carried = None if extra.carry is None else extra.carry.detach().float().contiguous()
        extra.carry = None
        options: dict[str, Any] = {
            "topk_weights": carried,
            "num_experts": config.num_experts,
            "num_max_tokens_per_rank": config.max_tokens_per_rank,
            "expert_alignment": config.alignment,
            "do_expand": config.layout == "expert_major",
            "use_tma_aligned_col_major_sf": config.scale_layout == "tma_column_major",
        }
        if extra.ep is None:
            options |= {"topk_idx": extra.topk_idx, "do_cpu_sync": config.size_mode == "exact"}
        else:
            # With a handle deep_ep 2.1.0 works out its default of num_sms before it knows num_experts.
            options |= {"handle": extra.ep, "num_sms": extra.ep.num_sms}
        sent = tuple(part.contiguous() for part in x) if isinstance(x, tuple) else x.contiguous()
        got, local_idx, weights, ep, _ = self._buffer.dispatch(sent, **options)
        if extra.ep is None:
            extra.ep = ep
            extra.local_idx = None if local_idx is None else self._fit(local_idx.long(), handle, -1)
        rows, scales = got if isinstance(got, tuple) else (got, None)
        if config.size_mode == "exact" and rows.shape[0] != handle.rows:
            raise EpError(f"deep_ep returned {rows.shape[0]} rows where {handle.rows} were counted")
        if weights is not None:
            weights = self._fit(weights, handle, 0)
            extra.weights = weights if extra.local_idx is None else torch.where(extra.local_idx >= 0, weights, 0)
        if scales is not None and scales.shape[0] != handle.rows:
            scales = self._fit(scales, handle, 0)
            scales = fp8.column_major(scales) if config.scale_layout == "tma_column_major" else scales
        return self._fit(rows, handle, 0), scales

    def _fit(self, value: Tensor, handle: Handle, fill: int) -> Tensor:
        """As many rows as the configuration states: in size_mode static deep_ep's own worst case may be another."""
        have, want = value.shape[0], handle.rows
        if have >= want:
            return value if have == want else value[:want]
        return torch.cat([value, value.new_full((want - have, *value.shape[1:]), fill)])

    def _ep(self, handle: Handle) -> Any:
        extra: _Extra = handle.extra
        if extra.ep is None:
            raise EpError("this handle has not been dispatched along")
        return extra.ep


def _refuse(config: EpConfig, group: EpGroup) -> None:
    """EpConfigError for what deep_ep's checks would refuse later, with words that name our fields."""
    rules = (
        (group.process_group is None, "DeepEP needs at least two ranks"),
        (config.dtype != torch.bfloat16, f"DeepEP moves bfloat16 rows, not {config.dtype}"),
        (config.hidden % 256 != 0, f"hidden {config.hidden} is not a multiple of 256, which DeepEP's combine needs"),
        (config.num_experts > MAX_EXPERTS, f"DeepEP has at most {MAX_EXPERTS} experts, not {config.num_experts}"),
        (
            config.local_experts(group.size) > MAX_LOCAL_EXPERTS,
            f"DeepEP has at most {MAX_LOCAL_EXPERTS} experts a rank, not {config.local_experts(group.size)}",
        ),
        (config.capacity_rows is not None, "DeepEP keeps its own worst case: leave capacity_rows out"),
    )
    for broken, words in rules:
        if broken:
            raise EpConfigError(words)


def _domain(group: EpGroup) -> _Domain:
    """Find the ranks' nodes, and switch GIN off where it cannot be had and is not needed: inside one NVLink domain.

    Without RDMA NCCL has no GIN type, which deep_ep asserts unless EP_DISABLE_GIN=1 (DeepEP PR #630). Between nodes the
    same variable would leave no path, so there it is refused.
    """
    nodes = len(set(group.gather_objects(deepep_probe.node())))
    wished = os.environ.get("EP_DISABLE_GIN")
    said = group.gather_objects(wished)
    if nodes > 1 and "1" in said:
        where = [rank for rank, value in enumerate(said) if value == "1"]
        raise EpConfigError(
            f"EP_DISABLE_GIN=1 on ranks {where}, but the ranks are on {nodes} nodes: it leaves no path between them"
        )
    if nodes == 1 and wished is None:
        os.environ["EP_DISABLE_GIN"] = "1"
    return _Domain(nodes, os.environ.get("EP_DISABLE_GIN") == "1")
