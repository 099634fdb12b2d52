"""NVLink: rows go straight into the peers' memory, once per rank, and are expanded while more are on the wire.

Nothing here waits on the host in size_mode static. docs/kernels.md has the protocol, and the order of launches that all
ranks must keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moerl_kernels.backend import RULES, Dispatched, EpBackend, Handle, Pending, Support
from moerl_kernels.config import FP8_BLOCK, Capabilities, EpConfig
from moerl_kernels.errors import EpConfigError, EpError, EpTimeout
from moerl_kernels.fp8 import TMA_ALIGNMENT
from moerl_kernels.group import EpGroup
from moerl_kernels.nvlink import symmetric
from moerl_kernels.nvlink.engine import Engine
from moerl_kernels.nvlink.layout import Layout
from moerl_kernels.routing import Arrangement, local_expert, owners

SEND, RECEIVE, FRESH, WEIGHTED = 1, 2, 4, 8  # bits of an operation's mode (device/sync.py)
WHOLE = SEND | RECEIVE
OPERATIONS = {1: "dispatch", 2: "combine", 3: "exchange", 4: "a launch"}


@dataclass(slots=True)
class _Extra:
    """What one routing leaves for later operations along it. T is max_tokens_per_rank, K the slots of layout.py."""

    codes: Tensor  # [tokens, K] int32: expert << shift | place among this rank's slots of it, -1 if empty
    counts: Tensor  # [E] int32: this rank's slots of each expert
    position: (
        Tensor  # [R, T, K] int32: received row of each rank's slots, -1 if not ours; written by the first dispatch
    )
    tokens_of: Tensor  # [R] int32, likewise
    fresh: bool  # no dispatch has gone along these routes yet
    local_idx: Tensor | None = None


class NVLink(EpBackend):
    """Up to 8 ranks whose GPUs can store into each other's memory."""

    name = "NVLink"
    capabilities = Capabilities(
        layouts=frozenset({"expert_major", "compact"}),
        wires=frozenset({"same", "fp8"}),
        size_modes=frozenset({"exact", "static"}),
        graph_safe=True,
        autograd=True,
        devices=frozenset({"cpu", "cuda"}),  # cpu: Triton's interpreter, for tests
        max_ranks=8,
    )

    @classmethod
    def probe(cls) -> Support:
        """Whether Triton, symmetric memory and a GPU (or the interpreter) are here."""
        try:
            import triton
        except ImportError as error:
            return Support(False, (f"Triton cannot be imported: {error}",))
        versions = {"triton": triton.__version__, "torch": torch.__version__}
        if triton.knobs.runtime.interpret:
            return Support(True, versions=versions)
        reasons = [reason for reason in (symmetric.available(),) if reason]
        if torch.version.cuda is None or torch.cuda.device_count() == 0:
            reasons.append("there is no CUDA device")
        return Support(not reasons, tuple(reasons), versions)

    def __init__(self, config: EpConfig, group: EpGroup) -> None:
        super().__init__(config, group)
        self._layout = Layout(config, group.size)
        self._layout.check()
        self._engine = Engine(self._layout, group)
        self._open = False
        self._wide = torch.float64 if self._layout.weight_bytes == 8 else torch.float32
        self._nothing = torch.empty(1, dtype=self._wide, device=group.device)  # where an operation has no weights

    def close(self) -> None:
        """Give back the arena. A collective, unless an operation has timed out."""
        self._engine.close()
        super().close()

    def transport_report(self) -> dict[str, Any]:
        """Adds how the arenas are shared, their size in bytes, and how many programs use the wire."""
        engine = self._engine
        return super().transport_report() | {
            "arena": engine.memory.kind,
            "arenaBytes": self._layout.offsets["END"],
            "wirePrograms": engine.grid.wire,
            "programs": engine.grid.programs,
        }

    # --- dispatch --------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        handle: Handle | None = None,
    ) -> Dispatched:
        """As in EpBackend; both halves in one kernel, so that rows are expanded while others are on the wire."""
        out: Dispatched = self._dispatch(x, topk_idx, topk_weights, handle, halves=False).finish()
        return out

    def dispatch_start(
        self,
        x: Tensor,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        *,
        handle: Handle | None = None,
    ) -> Pending:
        """As in EpBackend: a kernel that only sends; `.finish()` launches the one that receives, on any stream."""
        return self._dispatch(x, topk_idx, topk_weights, handle, halves=True)

    def _dispatch(
        self, x: Tensor, topk_idx: Tensor | None, weights: Tensor | None, handle: Handle | None, *, halves: bool
    ) -> Pending:
        with self._launching("dispatch"):
            if handle is None:
                x, weights, handle = self._plan(x, topk_idx, weights)
            graded = x.requires_grad or (weights is not None and weights.requires_grad)
            if self.config.wire == "fp8":
                if torch.is_grad_enabled() and x.requires_grad:
                    raise EpConfigError("wire fp8 has no gradient; train with wire same")
            elif torch.is_grad_enabled() and graded:
                return EpBackend.dispatch_start(self, x, topk_weights=weights, handle=handle)
            if weights is not None:
                weights = weights.detach().to(self._wide)
            return self._move(x, handle, weights, halves)

    def _move(self, x: Tensor, handle: Handle, weights: Tensor | None, halves: bool) -> Pending:
        """Launch; weights travel with the rows of a new routing, along a known one they are slots like others."""
        extra: _Extra = handle.extra
        fp8 = self.config.wire == "fp8"
        rows = torch.empty(
            (handle.rows, self.config.hidden), dtype=torch.float8_e4m3fn if fp8 else x.dtype, device=x.device
        )
        scales = self._new_scales(handle.rows) if fp8 else None
        ride = weights if extra.fresh and not self._layout.compact else None
        row_weights = None if ride is None else ride.new_empty(handle.rows)
        mode = (FRESH if extra.fresh else 0) | (WEIGHTED if ride is not None else 0)
        arguments = (
            x.contiguous() if fp8 else x.contiguous().view(torch.int32),
            extra.codes,
            self._nothing if ride is None else ride.contiguous(),
            extra.counts,
            rows.view(torch.int32),
            self._nothing if scales is None else scales,
            self._nothing if row_weights is None else row_weights,
            extra.position,
            extra.tokens_of,
            handle.arrangement.counts,
            handle.arrangement.starts,
            self._fault,
            handle.tokens,
            handle.rows,
            0 if scales is None else scales.stride(0),
            0 if scales is None else scales.stride(1),
        )
        extra.fresh = False

        def result() -> Dispatched:
            late = weights is not None and ride is None
            got = self._push_slots(weights, handle) if late and weights is not None else row_weights
            return self._dispatched(rows, scales, got, handle)

        if not halves:
            self._only("dispatch")
            self._engine.dispatch(mode | WHOLE, handle.tokens, arguments)
            return Pending(result)
        return self._halves(
            "dispatch", lambda half: self._engine.dispatch(mode | half, handle.tokens, arguments), result
        )

    def _new_scales(self, rows: int) -> Tensor:
        blocks = self.config.hidden // FP8_BLOCK
        if self.config.scale_layout == "row_major":
            return torch.empty(rows, blocks, dtype=torch.float32, device=self.group.device)
        pitch = -(-rows // TMA_ALIGNMENT) * TMA_ALIGNMENT
        return torch.empty(blocks, pitch, dtype=torch.float32, device=self.group.device)[:, :rows].t()

    def _halves(self, name: str, launch: Any, result: Any) -> Pending:
        self._only(name)
        with self._launching(name):
            launch(SEND)
        self._open = True
        sent = self._engine.mark()

        def finish() -> Any:
            with self._launching(name):
                self._engine.after(sent)
                launch(RECEIVE)
            self._open = False
            return result()

        return Pending(finish)

    def _only(self, name: str) -> None:
        if self._open:
            raise EpError(f"{name} started before the operation before it was finished: an arena carries one at a time")

    # --- combine ---------------------------------------------------------------------------------------

    def combine(self, y: Tensor, handle: Handle, *, weights: Tensor | None = None) -> Tensor:
        """As in EpBackend; both halves in one kernel."""
        self._weights_fit(weights)
        graded = y.requires_grad or (weights is not None and weights.requires_grad)
        if torch.is_grad_enabled() and graded:
            return EpBackend.combine_start(self, y, handle, weights=weights).finish()  # type: ignore[no-any-return]
        return self._pull(y, handle, weights).finish()  # type: ignore[no-any-return]

    def combine_start(self, y: Tensor, handle: Handle, *, weights: Tensor | None = None) -> Pending:
        """As in EpBackend: a kernel that only sends; `.finish()` launches the one that receives, on any stream."""
        self._weights_fit(weights)
        if torch.is_grad_enabled() and (y.requires_grad or (weights is not None and weights.requires_grad)):
            return EpBackend.combine_start(self, y, handle, weights=weights)
        launch, out = self._pulling(y, handle, weights)
        return self._halves("combine", launch, lambda: out)

    def _weights_fit(self, weights: Tensor | None) -> None:
        if weights is not None and self._layout.compact:
            raise EpConfigError(
                "layout compact: apply the weights before combine; its rows are sums over local experts"
            )

    def _pulling(self, rows: Tensor, handle: Handle, weights: Tensor | None) -> tuple[Any, Tensor]:
        extra: _Extra = handle.extra
        out = torch.empty(handle.tokens, self.config.hidden, dtype=rows.dtype, device=rows.device)
        arguments = (
            rows.contiguous(),
            self._nothing if weights is None else weights.to(self._wide).contiguous(),
            extra.position,
            extra.tokens_of,
            extra.codes,
            out,
            handle.tokens,
        )
        mode = 0 if weights is None else WEIGHTED
        return lambda half: self._engine.combine(mode | half, handle.tokens, arguments), out

    # --- what EpBackend's gradients need ---------------------------------------------------------------

    def _push(self, x: Tensor, handle: Handle) -> Pending:
        with self._launching("dispatch"):
            pending = self._move(x, handle, None, halves=False)
        return Pending(lambda: pending.finish().rows)

    def _pull(self, rows: Tensor, handle: Handle, weights: Tensor | None = None) -> Pending:
        with self._launching("combine"):
            self._only("combine")
            launch, out = self._pulling(rows, handle, weights)
            launch(WHOLE)
        return Pending(lambda: out)

    def _push_slots(self, values: Tensor, handle: Handle) -> Tensor:
        gathered = self._spread(values)
        row, mine = self._rows_of(handle)
        if self._layout.compact:
            local = self._local_slots(handle)
            out = values.new_zeros(handle.rows + 1, values.shape[1])
            out[row.flatten()] = (gathered * (local >= 0)).flatten(0, 1)
            return out[: handle.rows]
        out = values.new_zeros(handle.rows + 1)
        out[row.flatten()] = gathered.where(mine, 0).flatten()
        return out[: handle.rows]

    def _pull_slots(self, values: Tensor, handle: Handle) -> Tensor:
        row, mine = self._rows_of(handle)
        padded = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
        parts = padded[row]  # [R, T, K]
        if self._layout.compact:
            parts = parts.where(self._local_slots(handle) >= 0, 0)
        parts = parts.where(mine if not self._layout.compact else mine.unsqueeze(-1), 0)
        back = self._engine.exchange(parts.contiguous(), to_each=True)
        return back.sum(0)[: handle.tokens]  # one rank's part of each slot is not zero

    def _rows_of(self, handle: Handle) -> tuple[Tensor, Tensor]:
        """(received row of every rank's slots or tokens, `rows` where it is not ours; whether it is ours)."""
        extra: _Extra = handle.extra
        position = extra.position
        if self._layout.compact:
            position = position[:, :, self.group.rank]
        token = torch.arange(self._layout.tokens, device=position.device)
        there = token < extra.tokens_of.unsqueeze(1)
        mine = (position >= 0) & (there if self._layout.compact else there.unsqueeze(-1))
        return torch.where(mine, position, handle.rows).long(), mine

    def _spread(self, values: Tensor) -> Tensor:
        """[tokens, K] of every rank: [R, T, K]."""
        full = values.new_zeros(self._layout.tokens, values.shape[1])
        full[: values.shape[0]] = values
        return self._engine.exchange(full)

    def _local_slots(self, handle: Handle) -> Tensor:
        """Compact: [R, T, k] local expert of every rank's slots, -1 where it is held elsewhere."""
        extra: _Extra = handle.extra
        if extra.local_idx is None:
            everyone = self._spread(handle.topk_idx)
            extra.local_idx = local_expert(everyone, rank=self.group.rank, experts_per_rank=self.experts_per_rank)
        return extra.local_idx

    def _local_idx(self, handle: Handle) -> Tensor | None:
        if not self._layout.compact:
            return None
        local = self._local_slots(handle)
        out = local.new_full((handle.rows + 1, self.config.top_k), -1)
        out[self._rows_of(handle)[0].flatten()] = local.flatten(0, 1)
        return out[: handle.rows]

    # --- routing, agreement, errors --------------------------------------------------------------------

    def _plan(
        self, x: Tensor, topk_idx: Tensor | None, topk_weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Handle]:
        if self.config.size_mode == "exact":
            return super()._plan(x, topk_idx, topk_weights)
        # As in EpBackend, but the kernel that places the slots also looks at their values.
        rule, seen = self._broken_rule(x, topk_idx, topk_weights)
        if rule or topk_idx is None:
            topk_idx = torch.zeros(0, self.config.top_k, dtype=torch.int64, device=self.group.device)
            x = torch.zeros(0, self.config.hidden, dtype=self.config.dtype, device=self.group.device)
            topk_weights = None if topk_weights is None else x.new_zeros(0, self.config.top_k)
            self._fault[1] = torch.clamp(self._fault[1], min=self.group.rank + 1)
            self._fault_text = f"{RULES[rule]} ({seen})"
        return x, topk_weights, self._route(topk_idx.long(), None)

    def _route(self, topk_idx: Tensor, headers: list[list[int]] | None) -> Handle:
        config, layout, device = self.config, self._layout, topk_idx.device
        groups = topk_idx.contiguous()
        if layout.compact:
            ranks = torch.arange(self.group.size, device=device)
            touched = (owners(topk_idx, self.experts_per_rank).unsqueeze(-1) == ranks).any(1)
            groups = torch.where(touched, ranks, -1)
        extra = _Extra(
            codes=torch.empty(groups.shape, dtype=torch.int32, device=device),
            counts=torch.empty(layout.experts, dtype=torch.int32, device=device),
            position=torch.empty(self.group.size, layout.tokens, layout.top_k, dtype=torch.int32, device=device),
            tokens_of=torch.empty(self.group.size, dtype=torch.int32, device=device),
            fresh=True,
        )
        self._engine.route(groups, extra.codes, extra.counts, self._fault)
        found = self.group.size if layout.compact else layout.local
        plan = torch.empty(2 * found + 1, dtype=torch.int64, device=device)
        arrangement = Arrangement(extra.position, plan[:found], plan[found : 2 * found], plan[-1])
        rows = config.rows(self.group.size) if headers is None else self._exact_rows(headers)
        return Handle(topk_idx, arrangement, rows, extra)

    def _exact_rows(self, headers: list[list[int]]) -> int:
        config, n = self.config, self.experts_per_rank
        if self._layout.compact:
            return sum(header[2 + config.num_experts + self.group.rank] for header in headers)
        first = 2 + self.group.rank * n
        counts = [sum(header[first + e] for header in headers) for e in range(n)]
        return sum(-(-count // config.alignment) * config.alignment for count in counts)

    def _gather(self, value: Tensor) -> Tensor:
        return self._engine.exchange(value)

    def _headers(self, topk_idx: Tensor, rule: Tensor) -> list[list[int]]:
        headers = super()._headers(topk_idx, rule)
        self._raise_poison()
        return headers

    def _worst_fault(self) -> list[int]:
        worst: list[int] = self._engine.exchange(self._fault).amax(0).tolist()
        self._raise_poison()
        return worst

    def _raise_poison(self) -> None:
        """EpTimeout if this rank's arena is poisoned; a host read."""
        code = self._engine.poison_code()
        if code == 0:
            return
        rank, peer, what = (code - 1) % 16, (code - 1) // 16 % 16, OPERATIONS.get((code - 1) // 256, "an operation")
        if what == OPERATIONS[4]:
            said = f"rank {rank} failed before it launched its part"
        else:
            said = f"rank {rank} waited {self._engine.timeout:g} s for rank {peer} in {what}"
        raise EpTimeout(f"{said}; the results since the last check are void, and so is this backend: close it")

    @contextmanager
    def _launching(self, name: str) -> Iterator[None]:
        """A rank that fails here tells its peers at once, who would otherwise wait for the time-out."""
        try:
            yield
        except EpError:
            raise
        except BaseException:
            self._engine.give_up()
            raise
