"""NCCLAllToAll: one row per (token, slot) travels to its expert's rank and one back, as most trainers do today.

With layout compact a row travels once per (token, rank). Runs over any process group (gloo on CPU).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moerl_kernels.backend import EpBackend, Handle, Pending, weighted
from moerl_kernels.config import COLLECTIVE
from moerl_kernels.routing import arrange, owners
from moerl_kernels.rows import gather_rows, sum_slots


@dataclass(frozen=True, slots=True)
class _Extra:
    send: list[int] | None  # rows to each rank; None: equal splits (static)
    receive: list[int] | None
    outgoing: int  # rows of the send buffer
    place: Tensor  # [U] int64: place of each unit in the send buffer, `outgoing` if it goes nowhere
    unit: Tensor  # [outgoing] int64: unit of each place
    kept: Tensor  # [incoming] int64: received row of each arrived row, `rows` if dropped (static padding)
    origin: Tensor  # [rows] int64: arrived row of each received row
    local_idx: Tensor | None  # compact: [rows, k]
    mask: Tensor | None  # compact: [T, R, k] bool, slots of each (token, rank)


class NcclAllToAll(EpBackend):
    """all_to_all_single with a stable sort at both ends."""

    name = "NCCLAllToAll"
    capabilities = COLLECTIVE

    def _route(self, topk_idx: Tensor, headers: list[list[int]] | None) -> Handle:
        config, group = self.config, self.group
        owner = owners(topk_idx, self.experts_per_rank)
        compact = config.layout == "compact"
        if compact:
            # A unit is a (token, rank); it travels if any slot's expert is there.
            ranks = torch.arange(group.size, device=topk_idx.device)
            mask = owner.unsqueeze(1) == ranks.unsqueeze(-1)  # [T, R, k]
            target = torch.where(mask.any(-1), ranks, -1).flatten()
            note = torch.where(mask, (topk_idx % self.experts_per_rank).unsqueeze(1), -1).flatten(0, 1)
        else:
            mask, target = None, owner.flatten()
            note = torch.where(topk_idx < 0, -1, topk_idx % self.experts_per_rank).view(-1, 1)
        send, receive, outgoing, place = self._lay_out(target, headers)
        unit = torch.zeros(outgoing + 1, dtype=torch.int64, device=topk_idx.device)
        unit.scatter_(0, place, torch.arange(target.numel(), device=unit.device))
        letters = note.new_full((outgoing + 1, note.shape[1]), -1)
        letters[place] = note
        arrived, _ = group.exchange(letters[:outgoing], send=send, receive=receive)
        return self._arranged(
            topk_idx,
            headers,
            arrived,
            _Extra(send, receive, outgoing, place, unit[:outgoing], place, place, None, mask),
        )

    def _lay_out(
        self, target: Tensor, headers: list[list[int]] | None
    ) -> tuple[list[int] | None, list[int] | None, int, Tensor]:
        """(rows to each rank, rows from each rank, size of the send buffer, place of each unit in it)."""
        config, group = self.config, self.group
        if headers is None:
            most = 1 if config.layout == "compact" else min(config.top_k, self.experts_per_rank)
            slot = config.max_tokens_per_rank * most
            plan = arrange(target, groups=group.size, alignment=1, rows=None)
            rank_in_group = plan.position - plan.starts[target.clamp(min=0)]
            outgoing = slot * group.size
            return None, None, outgoing, torch.where(target < 0, outgoing, target * slot + rank_in_group)
        if config.layout == "compact":
            first = 2 + config.num_experts
            table = [header[first:] for header in headers]
        else:
            n = self.experts_per_rank
            table = [[sum(header[2 + r * n : 2 + (r + 1) * n]) for r in range(group.size)] for header in headers]
        send, receive = table[group.rank], [row[group.rank] for row in table]
        plan = arrange(target, groups=group.size, alignment=1, rows=sum(send))
        return send, receive, sum(send), plan.position

    def _arranged(self, topk_idx: Tensor, headers: list[list[int]] | None, arrived: Tensor, extra: _Extra) -> Handle:
        config, group = self.config, self.group
        incoming = arrived.shape[0]
        if config.layout == "expert_major":
            candidates, groups = arrived[:, 0], self.experts_per_rank
        else:
            source = torch.arange(incoming, device=arrived.device)
            if extra.receive is None:
                source = source // config.max_tokens_per_rank
            else:
                ends = torch.tensor(extra.receive, device=arrived.device).cumsum(0)
                source = torch.searchsorted(ends, source, right=True)
            candidates, groups = torch.where((arrived >= 0).any(-1), source, -1), group.size
        rows = config.rows(group.size) if headers is None else self._exact_rows(headers, incoming)
        plan = arrange(candidates, groups=groups, alignment=config.alignment, rows=rows)
        if headers is None:
            self._note_overflow(plan.total, rows)
        origin = torch.zeros(rows + 1, dtype=torch.int64, device=arrived.device)
        origin.scatter_(0, plan.position, torch.arange(incoming, device=arrived.device))
        origin = origin[:rows]
        local_idx = None
        if config.layout == "compact":
            local_idx = gather_rows(arrived, origin)
        done = _Extra(
            extra.send,
            extra.receive,
            extra.outgoing,
            extra.place,
            extra.unit,
            plan.position,
            origin,
            local_idx,
            extra.mask,
        )
        return Handle(topk_idx, plan, rows, done)

    def _exact_rows(self, headers: list[list[int]], incoming: int) -> int:
        if self.config.layout == "compact":
            return incoming
        first, alignment = 2 + self.group.rank * self.experts_per_rank, self.config.alignment
        counts = [sum(header[first + e] for header in headers) for e in range(self.experts_per_rank)]
        return sum(-(-count // alignment) * alignment for count in counts)

    def _units_per_token(self) -> int:
        return self.group.size if self.config.layout == "compact" else self.config.top_k

    def _push(self, x: Tensor, handle: Handle) -> Pending:
        extra: _Extra = handle.extra
        outgoing = gather_rows(x, extra.unit // self._units_per_token())
        arrived, work = self.group.exchange(outgoing, send=extra.send, receive=extra.receive, async_op=True)

        def finish() -> Tensor:
            if work is not None:
                work.wait()
            return gather_rows(arrived, extra.origin)

        return Pending(finish)

    def _pull(self, rows: Tensor, handle: Handle, weights: Tensor | None = None) -> Pending:
        extra: _Extra = handle.extra
        rows = weighted(rows, weights)  # in the row's type: the owner does not know the weights of its rows
        outgoing = gather_rows(rows, extra.kept.clamp(max=max(handle.rows - 1, 0)))
        back, work = self.group.exchange(outgoing, send=extra.receive, receive=extra.send, async_op=True)

        def finish() -> Tensor:
            if work is not None:
                work.wait()
            slots = extra.place.view(handle.tokens, self._units_per_token())
            return sum_slots(back, slots).to(rows.dtype)

        return Pending(finish)

    def _push_slots(self, values: Tensor, handle: Handle) -> Tensor:
        extra: _Extra = handle.extra
        if extra.mask is None:
            outgoing = gather_rows(values.reshape(-1, 1), extra.unit)
        else:
            outgoing = gather_rows((values.unsqueeze(1) * extra.mask).flatten(0, 1), extra.unit)
        arrived, _ = self.group.exchange(outgoing, send=extra.send, receive=extra.receive)
        out = gather_rows(arrived, extra.origin)
        return out[:, 0] if extra.mask is None else out

    def _pull_slots(self, values: Tensor, handle: Handle) -> Tensor:
        extra: _Extra = handle.extra
        columns = values.reshape(handle.rows, 1 if extra.mask is None else self.config.top_k)
        outgoing = gather_rows(columns, extra.kept.clamp(max=max(handle.rows - 1, 0)))
        back, _ = self.group.exchange(outgoing, send=extra.receive, receive=extra.send)
        there = (extra.place < back.shape[0]).unsqueeze(-1)
        units = gather_rows(back, extra.place.clamp(max=max(back.shape[0] - 1, 0))).where(there, 0)
        if extra.mask is None:
            return units.view(handle.tokens, self.config.top_k)
        units = units.view(handle.tokens, self.group.size, self.config.top_k)
        return units.where(extra.mask, 0).sum(1)

    def _local_idx(self, handle: Handle) -> Tensor | None:
        extra: _Extra = handle.extra
        return extra.local_idx
