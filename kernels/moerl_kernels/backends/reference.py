"""Reference: what dispatch and combine mean, in loops anyone can check. The oracle of the contract tests.

Every rank sees everything and picks its part; nothing is fast. Sums are made once, in slot order, without a
rounding per rank, in fp32 (fp64 for fp64, which is what gradient checks use).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moerl_kernels.backend import EpBackend, Handle, Pending
from moerl_kernels.config import Capabilities
from moerl_kernels.routing import Arrangement

Row = tuple[int, int, int]  # source rank, source token, slot (expert-major) or -1 (compact)


@dataclass(frozen=True, slots=True)
class _Extra:
    tables: list[list[Row | None]]  # per rank: what each received row is; None is an alignment gap
    everyone: list[list[list[int]]]  # topk_idx of every rank


class Reference(EpBackend):
    """Pure torch and Python, any process group; exact sizes only."""

    name = "Reference"
    capabilities = Capabilities(
        layouts=frozenset({"expert_major", "compact"}),
        wires=frozenset({"same", "fp8"}),
        size_modes=frozenset({"exact"}),
        graph_safe=False,
        autograd=True,
        devices=frozenset({"cpu", "cuda"}),
    )

    def _route(self, topk_idx: Tensor, headers: list[list[int]] | None) -> Handle:
        everyone = self.group.gather_objects(topk_idx.tolist())
        laid_out = [self._lay_out(rank, everyone) for rank in range(self.group.size)]
        rows, counts, starts = laid_out[self.group.rank]
        device = topk_idx.device
        plan = Arrangement(
            position=torch.empty(0, dtype=torch.int64, device=device),
            counts=torch.tensor(counts, dtype=torch.int64, device=device),
            starts=torch.tensor(starts, dtype=torch.int64, device=device),
            total=torch.tensor(len(rows), device=device),
        )
        return Handle(topk_idx, plan, len(rows), _Extra([table for table, _, _ in laid_out], everyone))

    def _lay_out(self, rank: int, everyone: list[list[list[int]]]) -> tuple[list[Row | None], list[int], list[int]]:
        """(what each row of `rank` is, rows per group, first row of each group)."""
        first, n = rank * self.experts_per_rank, self.experts_per_rank
        groups: list[list[Row]] = []
        if self.config.layout == "expert_major":
            for expert in range(first, first + n):
                groups.append(
                    [
                        (source, token, slot)
                        for source, tokens in enumerate(everyone)
                        for token, chosen in enumerate(tokens)
                        for slot, e in enumerate(chosen)
                        if e == expert
                    ]
                )
        else:
            for source, tokens in enumerate(everyone):
                groups.append(
                    [(source, t, -1) for t, chosen in enumerate(tokens) if any(first <= e < first + n for e in chosen)]
                )
        rows: list[Row | None] = []
        starts = []
        for group in groups:
            starts.append(len(rows))
            rows += group
            rows += [None] * (-len(group) % self.config.alignment)
        return rows, [len(group) for group in groups], starts

    def _everything(self, x: Tensor) -> list[Tensor]:
        """`x` of every rank."""
        if x.dtype == torch.float8_e4m3fn:  # cannot be pickled in every version; it is bytes all the same
            return [part.view(x.dtype) for part in self._everything(x.view(torch.uint8))]
        return [part.to(x.device) for part in self.group.gather_objects(x.cpu())]

    def _push(self, x: Tensor, handle: Handle) -> Pending:
        parts = self._everything(x)
        rows = torch.zeros((handle.rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
        for i, row in enumerate(handle.extra.tables[self.group.rank]):
            if row is not None:
                rows[i] = parts[row[0]][row[1]]
        return Pending(lambda: rows)

    def _pull(self, rows: Tensor, handle: Handle, weights: Tensor | None = None) -> Pending:
        wide = torch.promote_types(rows.dtype, torch.float32)
        parts = self._everything(rows.to(wide) if weights is None else rows.to(wide) * weights.to(wide).unsqueeze(-1))
        total = torch.zeros(handle.tokens, rows.shape[1], dtype=wide, device=rows.device)
        for token, slot, rank, i in self._mine(handle):
            del slot  # _mine yields in slot order, which is the order of the sum
            total[token] += parts[rank][i]
        result = total.to(rows.dtype)
        return Pending(lambda: result)

    def _mine(self, handle: Handle) -> list[tuple[int, int, int, int]]:
        """(token, slot, rank, row) of every row that came from this rank, by token and slot (compact: by rank)."""
        found = [
            (row[1], row[2], rank, i)
            for rank, table in enumerate(handle.extra.tables)
            for i, row in enumerate(table)
            if row is not None and row[0] == self.group.rank
        ]
        return sorted(found)

    def _push_slots(self, values: Tensor, handle: Handle) -> Tensor:
        parts = self._everything(values)
        table = handle.extra.tables[self.group.rank]
        if self.config.layout == "expert_major":
            out = torch.zeros(handle.rows, dtype=values.dtype, device=values.device)
            for i, row in enumerate(table):
                if row is not None:
                    out[i] = parts[row[0]][row[1], row[2]]
            return out
        local = self._local_idx(handle)
        assert local is not None
        out = torch.zeros(handle.rows, values.shape[1], dtype=values.dtype, device=values.device)
        for i, row in enumerate(table):
            assert row is not None
            out[i] = parts[row[0]][row[1]] * (local[i] >= 0)
        return out

    def _pull_slots(self, values: Tensor, handle: Handle) -> Tensor:
        parts = self._everything(values)
        out = torch.zeros(handle.topk_idx.shape, dtype=values.dtype, device=values.device)
        for token, slot, rank, i in self._mine(handle):
            if slot >= 0:
                out[token, slot] = parts[rank][i]
            else:
                for k, expert in enumerate(handle.topk_idx[token].tolist()):
                    if expert >= 0 and expert // self.experts_per_rank == rank:
                        out[token, k] = parts[rank][i, k]
        return out

    def _local_idx(self, handle: Handle) -> Tensor | None:
        if self.config.layout == "expert_major":
            return None
        first = self.group.rank * self.experts_per_rank
        rows = [
            [
                e - first if first <= e < first + self.experts_per_rank else -1
                for e in handle.extra.everyone[row[0]][row[1]]
            ]
            for row in handle.extra.tables[self.group.rank]
        ]
        return torch.tensor(rows, dtype=torch.int64, device=handle.topk_idx.device).view(-1, self.config.top_k)
