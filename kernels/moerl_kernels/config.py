"""What all ranks must agree on before the first dispatch, and what a backend says it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from moerl_kernels.errors import EpConfigError

Layout = Literal["expert_major", "compact"]
SizeMode = Literal["exact", "static"]
Wire = Literal["same", "fp8"]
ScaleLayout = Literal["row_major", "tma_column_major"]

FP8_BLOCK = 128  # one fp32 scale per 1 x 128 block of a row
ALIGNMENTS = (1, 8, 16, 128)
DTYPES = (torch.bfloat16, torch.float32, torch.float64)
MAX_TOP_K = 32


@dataclass(frozen=True, slots=True)
class EpConfig:
    """The shape of one expert-parallel exchange; equal on every rank.

    num_experts: experts over all ranks, placed contiguously (rank r holds [r*E/R, (r+1)*E/R)).
    top_k: slots per token; an index of -1 is an empty slot.
    hidden: elements of a row.
    max_tokens_per_rank: upper bound of tokens that one rank brings to one dispatch.
    dtype: of rows; fp64 is for gradient checks.
    layout: expert_major gives one row per (token, local expert), grouped by expert, each group starting at
        a multiple of `alignment`; compact gives one row per (token, this rank), grouped by source rank.
    size_mode: exact reads sizes on the host once per dispatch; static never does, and writes at most
        `capacity_rows` rows (None: the worst case, so that nothing can overflow).
    wire: fp8 sends e4m3 rows with fp32 scales per 1 x 128 block; forward only.
    """

    num_experts: int
    top_k: int
    hidden: int
    max_tokens_per_rank: int
    dtype: torch.dtype = torch.bfloat16
    layout: Layout = "expert_major"
    alignment: int = 1
    size_mode: SizeMode = "exact"
    capacity_rows: int | None = None
    wire: Wire = "same"
    scale_layout: ScaleLayout = "row_major"

    def __post_init__(self) -> None:
        for name in ("num_experts", "top_k", "hidden", "max_tokens_per_rank"):
            if getattr(self, name) < 1:
                raise EpConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.top_k > min(self.num_experts, MAX_TOP_K):
            raise EpConfigError(f"top_k is {self.top_k}, at most {min(self.num_experts, MAX_TOP_K)} is possible here")
        if self.dtype not in DTYPES:
            raise EpConfigError(f"dtype {self.dtype} is not one of {', '.join(map(str, DTYPES))}")
        if self.alignment not in ALIGNMENTS:
            raise EpConfigError(f"alignment {self.alignment} is not one of {ALIGNMENTS}")
        if self.layout == "compact" and self.alignment != 1:
            raise EpConfigError("alignment belongs to layout expert_major; compact has none")
        if self.wire == "fp8" and self.hidden % FP8_BLOCK:
            raise EpConfigError(f"hidden {self.hidden} is not a multiple of {FP8_BLOCK}, which wire fp8 needs")
        if self.dtype == torch.bfloat16 and self.hidden % 8:
            raise EpConfigError(f"hidden {self.hidden} is not a multiple of 8: bf16 rows move in 16-byte pieces")
        if self.capacity_rows is not None and self.size_mode != "static":
            raise EpConfigError("capacity_rows belongs to size_mode static")
        if self.capacity_rows is not None and self.capacity_rows < 1:
            raise EpConfigError(f"capacity_rows must be at least 1, not {self.capacity_rows}")

    def for_ranks(self, ranks: int) -> None:
        """Raise EpConfigError unless `ranks` ranks can hold this configuration."""
        if self.num_experts % ranks:
            raise EpConfigError(f"num_experts {self.num_experts} is not divisible by {ranks} ranks")

    def local_experts(self, ranks: int) -> int:
        """Experts of one rank."""
        return self.num_experts // ranks

    def worst_rows(self, ranks: int) -> int:
        """Rows that one rank can receive at most, alignment gaps included."""
        tokens = ranks * self.max_tokens_per_rank
        if self.layout == "compact":
            return tokens
        local = self.local_experts(ranks)
        return tokens * min(self.top_k, local) + local * (self.alignment - 1)

    def rows(self, ranks: int) -> int:
        """Rows of the received tensor in size_mode static."""
        return min(self.capacity_rows or self.worst_rows(ranks), self.worst_rows(ranks))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend does; `create` refuses a configuration outside of it."""

    layouts: frozenset[str]
    wires: frozenset[str]
    size_modes: frozenset[str]
    graph_safe: bool  # size_mode static makes no host sync and can be captured
    autograd: bool
    devices: frozenset[str]
    max_ranks: int = 1024
    repeatable: bool = True  # bitwise, at one rank count


# What any pair of collectives over a process group can do, whichever way the rows travel.
COLLECTIVE = Capabilities(
    layouts=frozenset({"expert_major", "compact"}),
    wires=frozenset({"same", "fp8"}),
    size_modes=frozenset({"exact", "static"}),
    graph_safe=True,
    autograd=True,
    devices=frozenset({"cpu", "cuda"}),
)
