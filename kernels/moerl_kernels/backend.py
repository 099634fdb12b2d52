"""The two calls of expert parallelism, dispatch and combine, and what a backend must bring for them.

A backend implements two linear maps and their transposes: *push* copies token rows to the ranks of their
experts, *pull* sums rows back at their owners. Dispatch is push, combine is pull of weighted rows; the
gradient of each is the other (as in DeepEP's handles and torchtitan's dispatchers), so it is written once, here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from moerl_kernels import fp8
from moerl_kernels.config import Capabilities, EpConfig
from moerl_kernels.errors import EpConfigError, EpInputError, EpOverflow
from moerl_kernels.group import EpGroup
from moerl_kernels.routing import Arrangement, owners

# What a rank's tensors may break; a rank tells the others the number, so that all raise the same words.
RULES = {
    1: "x is not [tokens, hidden] in the configured dtype",
    2: "more tokens than max_tokens_per_rank",
    3: "topk_idx is not integers [tokens, top_k]",
    4: "topk_weights and topk_idx differ in shape",
    5: "topk_idx holds something else than an expert or -1",
}


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend can run here, and every reason if not; `versions` of what it would use."""

    ok: bool
    reasons: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handle:
    """One routing, kept for combine, for gradients and for dispatching again along the same routes.

    topk_idx: [T, k] of this rank. rows: length of the received tensor. extra: the backend's own.
    """

    topk_idx: Tensor
    arrangement: Arrangement
    rows: int
    extra: Any

    @property
    def tokens(self) -> int:
        """T, tokens of this rank."""
        return self.topk_idx.shape[0]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Rows for this rank's experts.

    rows: [N, hidden] in the configuration's dtype, or float8_e4m3fn with `scales`. Alignment gaps hold anything.
    scales: [N, hidden / 128] fp32 with wire fp8; with tma_column_major the rows are the contiguous dimension.
    weights: router weights fp32, [N] (expert-major) or [N, k] (compact), None if none were given.
    local_idx: compact only: [N, k] local expert of each slot, -1 for slots of other ranks.
    counts: [L] int64 on the device: rows per local expert (expert-major) or per source rank (compact).
    starts: [L] int64 on the device: first row of each.
    """

    rows: Tensor
    scales: Tensor | None
    weights: Tensor | None
    local_idx: Tensor | None
    counts: Tensor
    starts: Tensor
    handle: Handle


@dataclass(frozen=True, slots=True)
class Pending:
    """The first half of a dispatch or combine: sent, not yet received. Finish it before the next operation."""

    finish: Any  # () -> result of the second half


class EpBackend(ABC):
    """One way to move rows between ranks. Make one with moerl_kernels.create; all methods are collectives."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def __init__(self, config: EpConfig, group: EpGroup) -> None:
        self.config = config
        self.group = group
        self.experts_per_rank = config.local_experts(group.size)
        self._fault = torch.zeros(2, dtype=torch.int64, device=group.device)  # (rows too many, bad input code)
        self._fault_text = ""

    # --- what a backend brings -------------------------------------------------------------------------

    @classmethod
    def probe(cls) -> Support:
        """Whether it can run here. Never raises, changes nothing, initialises no device."""
        return Support(True)

    @abstractmethod
    def _route(self, topk_idx: Tensor, headers: list[list[int]] | None) -> Handle:
        """Exchange what is needed to know where every row goes. topk_idx: [T, k] int64; headers: see _headers."""

    @abstractmethod
    def _push(self, x: Tensor, handle: Handle) -> Pending:
        """[T, ...] of this rank -> [N, ...] for this rank's experts, any row type."""

    @abstractmethod
    def _pull(self, rows: Tensor, handle: Handle, weights: Tensor | None = None) -> Pending:
        """[N, hidden], [N] -> [T, hidden]: the (weighted) sum of each token's rows, fp32 (fp64), in fixed order."""

    @abstractmethod
    def _push_slots(self, values: Tensor, handle: Handle) -> Tensor:
        """One scalar per slot, [T, k] -> [N] (expert-major) or [N, k] (compact)."""

    @abstractmethod
    def _pull_slots(self, values: Tensor, handle: Handle) -> Tensor:
        """The transpose of _push_slots; empty slots get 0."""

    def _local_idx(self, handle: Handle) -> Tensor | None:
        """Compact: [N, k] local expert of each slot."""
        return None

    def close(self) -> None:
        """Give back what the backend holds. The process group is the caller's."""
        del self._fault

    # --- what a user calls -----------------------------------------------------------------------------

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        handle: Handle | None = None,
    ) -> Dispatched:
        """Send each row of `x` [T, hidden] to the ranks of its experts.

        topk_idx: [T, k] integers, -1 for an empty slot; or the `handle` of an earlier dispatch.
        topk_weights: [T, k] fp32, carried along. T may be 0, and may differ between ranks.
        Raises EpInputError on all ranks if any rank's tensors break the configuration. In size_mode static that
        waits until check(); the rank in question takes part without tokens until then.
        """
        return self.dispatch_start(x, topk_idx, topk_weights, handle=handle).finish()  # type: ignore[no-any-return]

    def dispatch_start(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        handle: Handle | None = None,
    ) -> Pending:
        """The sending half of dispatch; `.finish()` gives the Dispatched. Gradients need the whole call."""
        if handle is None:
            x, topk_weights, handle = self._plan(x, topk_idx, topk_weights)
        if topk_weights is not None:
            topk_weights = topk_weights.float() if x.dtype != torch.float64 else topk_weights.double()
        if self.config.wire == "fp8":
            return self._dispatch_fp8(x, topk_weights, handle)
        needs_grad = torch.is_grad_enabled() and (
            x.requires_grad or (topk_weights is not None and topk_weights.requires_grad)
        )
        if needs_grad:
            rows, weights = _Dispatch.apply(x, topk_weights, self, handle)  # type: ignore[no-untyped-call]
            return Pending(lambda: self._dispatched(rows, None, weights, handle))
        pending = self._push(x, handle)
        weights = None if topk_weights is None else self._push_slots(topk_weights, handle)
        return Pending(lambda: self._dispatched(pending.finish(), None, weights, handle))

    def combine(self, y: Tensor, handle: Handle, *, weights: Tensor | None = None) -> Tensor:
        """Sum `weights * y` of every token's rows at its owner: [N, hidden] -> [T, hidden].

        weights: [N] fp32 of the Dispatched (expert-major only), or None for a plain sum. Sums are fp32 in
        fixed order; between rank counts results differ by at most one rounding per contributing rank.
        """
        return self.combine_start(y, handle, weights=weights).finish()  # type: ignore[no-any-return]

    def combine_start(self, y: Tensor, handle: Handle, *, weights: Tensor | None = None) -> Pending:
        """The sending half of combine. Gradients need the whole call."""
        if weights is not None and self.config.layout == "compact":
            raise EpConfigError(
                "layout compact: apply the weights before combine; its rows are sums over local experts"
            )
        if torch.is_grad_enabled() and (y.requires_grad or (weights is not None and weights.requires_grad)):
            out = _Combine.apply(y, weights, self, handle)  # type: ignore[no-untyped-call]
            return Pending(lambda: out)
        return self._pull(y, handle, weights)

    def check(self) -> None:
        """Raise on all ranks what size_mode static could not raise at once: EpOverflow or EpInputError.

        A collective with a host read: call it once a step, not once a layer.
        """
        worst = self._worst_fault()
        self._fault.zero_()
        if worst[0]:
            capacity = self.config.rows(self.group.size)
            raise EpOverflow(
                f"{worst[0] + capacity} rows arrived at one rank, capacity_rows is {capacity}: raise capacity_rows "
                "or leave it out; the results since the last check are void"
            )
        if worst[1]:
            here, self._fault_text = self._fault_text, ""
            raise EpInputError(
                f"rank {worst[1] - 1} brought tensors that break the configuration"
                + (f" (here: {here})" if here else "")
            )

    def transport_report(self) -> dict[str, Any]:
        """What this backend knows of the path that rows take; `moerl_kernels` gathers the evidence around it."""
        return {"backend": self.name, "ranks": self.group.size, "device": str(self.group.device)}

    # --- shared parts ----------------------------------------------------------------------------------

    def _worst_fault(self) -> list[int]:
        """The largest of each fault over the ranks. A collective with a host read."""
        worst: list[int] = self.group.any(self._fault).tolist()
        return worst

    def _gather(self, value: Tensor) -> Tensor:
        """Equal-shaped int64 tensors of all ranks, stacked. A collective."""
        return self.group.gather(value)

    def _dispatched(self, rows: Tensor, scales: Tensor | None, weights: Tensor | None, handle: Handle) -> Dispatched:
        arrangement = handle.arrangement
        return Dispatched(
            rows=rows,
            scales=scales,
            weights=weights,
            local_idx=self._local_idx(handle),
            counts=arrangement.counts,
            starts=arrangement.starts,
            handle=handle,
        )

    def _dispatch_fp8(self, x: Tensor, topk_weights: Tensor | None, handle: Handle) -> Pending:
        if torch.is_grad_enabled() and x.requires_grad:
            raise EpConfigError("wire fp8 has no gradient; train with wire same")
        quantised, scales = fp8.quantise(x)
        rows, row_scales = self._push(quantised, handle), self._push(scales, handle)
        weights = None if topk_weights is None else self._push_slots(topk_weights, handle)

        def finish() -> Dispatched:
            got = row_scales.finish()
            if self.config.scale_layout == "tma_column_major":
                got = fp8.column_major(got)
            return self._dispatched(rows.finish(), got, weights, handle)

        return Pending(finish)

    def _broken_rule(self, x: Tensor, topk_idx: Tensor | None, topk_weights: Tensor | None) -> tuple[int, str]:
        """Which of RULES these tensors break (0: none), with what was seen. Looks at shapes only."""
        config = self.config
        if x.dim() != 2 or x.shape[1] != config.hidden or x.dtype != config.dtype:
            return 1, f"x is {x.dtype} {list(x.shape)}, not {config.dtype} [tokens, {config.hidden}]"
        if x.shape[0] > config.max_tokens_per_rank:
            return 2, f"{x.shape[0]} tokens, max_tokens_per_rank is {config.max_tokens_per_rank}"
        if topk_idx is None or topk_idx.shape != (x.shape[0], config.top_k) or topk_idx.dtype.is_floating_point:
            seen = None if topk_idx is None else f"{topk_idx.dtype} {list(topk_idx.shape)}"
            return 3, f"topk_idx is {seen}, not integers [{x.shape[0]}, {config.top_k}]"
        if topk_weights is not None and topk_weights.shape != topk_idx.shape:
            return 4, f"topk_weights has shape {list(topk_weights.shape)}, topk_idx {list(topk_idx.shape)}"
        return 0, ""

    def _plan(
        self, x: Tensor, topk_idx: Tensor | None, topk_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Handle]:
        """Check the tensors of all ranks, then route; in exact mode either all ranks go on or all raise."""
        rule, seen = self._broken_rule(x, topk_idx, topk_weights)
        if rule or topk_idx is None:
            topk_idx = torch.zeros(0, self.config.top_k, dtype=torch.int64, device=self.group.device)
        topk_idx = topk_idx.long()
        experts = self.config.num_experts
        strange = ((topk_idx < -1) | (topk_idx >= experts)).any().long()
        topk_idx = topk_idx.clamp(-1, experts - 1)
        if self.config.size_mode == "exact":
            headers = self._headers(topk_idx, torch.where(strange > 0, 5, rule))
            broken = {rank: header[1] for rank, header in enumerate(headers) if header[1]}
            if broken:
                raise EpInputError(
                    "; ".join(f"rank {rank}: {RULES[code]}" for rank, code in broken.items())
                    + (f" (here: {seen})" if seen else "")
                )
            return x, topk_weights, self._route(topk_idx, headers)
        # Static mode reads nothing, so nobody can be told now. A rank with bad tensors goes on without any, because
        # the others are on their way into the same collectives; check() then raises on all.
        handle = self._route(topk_idx, None)
        self._fault[1] = torch.maximum(self._fault[1], (strange + rule > 0).long() * (self.group.rank + 1))
        if rule:
            self._fault_text = f"{RULES[rule]} ({seen})"
            x = torch.zeros(0, self.config.hidden, dtype=self.config.dtype, device=self.group.device)
            topk_weights = None if topk_weights is None else x.new_zeros(0, self.config.top_k)
        return x, topk_weights, handle

    def _headers(self, topk_idx: Tensor, rule: Tensor) -> list[list[int]]:
        """The one host read of exact mode: per rank [tokens, rule, slots per expert (E), tokens per rank (R)]."""
        config, device = self.config, topk_idx.device
        flat = topk_idx.flatten()
        slots = torch.zeros(config.num_experts, dtype=torch.int64, device=device)
        slots.scatter_add_(0, flat.clamp(min=0), (flat >= 0).long())
        owner = owners(topk_idx, self.experts_per_rank)
        ranks = torch.arange(self.group.size, device=device)
        touched = (owner.unsqueeze(-1) == ranks).any(1).sum(0)
        tokens = torch.tensor([topk_idx.shape[0]], device=device)
        mine = torch.cat([tokens, rule.reshape(1), slots, touched])
        headers: list[list[int]] = self._gather(mine).tolist()
        return headers

    def _note_overflow(self, total: Tensor, rows: int) -> None:
        """Remember on the device that `total` rows were too many for `rows`."""
        self._fault[0] = torch.maximum(self._fault[0], (total - rows).clamp(min=0))


def weighted(y: Tensor, weights: Tensor | None) -> Tensor:
    """weights * y in fp32, back in y's dtype."""
    if weights is None:
        return y
    wide = torch.promote_types(y.dtype, torch.float32)
    return (y.to(wide) * weights.to(wide).unsqueeze(-1)).to(y.dtype)


class _Dispatch(torch.autograd.Function):
    """push, whose gradient is pull."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor | None, backend: EpBackend, handle: Handle) -> Any:
        ctx.backend, ctx.handle, ctx.weighted = backend, handle, weights is not None
        rows = backend._push(x, handle).finish()
        return rows, None if weights is None else backend._push_slots(weights, handle)

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, grad_weights: Tensor | None) -> Any:
        grad_x = ctx.backend._pull(grad_rows.contiguous(), ctx.handle).finish()
        grad_w = ctx.backend._pull_slots(grad_weights, ctx.handle) if ctx.weighted else None
        return grad_x, grad_w, None, None


class _Combine(torch.autograd.Function):
    """pull of weighted rows, whose gradients are push, and the rows' inner product with it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weights: Tensor | None, backend: EpBackend, handle: Handle) -> Any:
        ctx.backend, ctx.handle = backend, handle
        ctx.save_for_backward(y, weights)
        return backend._pull(y, handle, weights).finish()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        y, weights = ctx.saved_tensors
        rows = ctx.backend._push(grad.contiguous(), ctx.handle).finish()
        if weights is None:
            return rows, None, None, None
        wide = torch.promote_types(y.dtype, torch.float32)
        grad_w = (rows.to(wide) * y.to(wide)).sum(-1).to(weights.dtype)
        return weighted(rows, weights), grad_w, None, None
