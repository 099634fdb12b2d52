"""Expert-parallel dispatch and combine: one interface, several backends, none of which stands in for another.

group = EpGroup.of(device="cuda")
backend = create("NCCLAllToAll", EpConfig(num_experts=256, top_k=8, hidden=7168, max_tokens_per_rank=4096), group)
got = backend.dispatch(x, topk_idx, topk_weights)
out = backend.combine(experts(got), got.handle, weights=got.weights)
"""

from moerl_kernels.backend import Dispatched, EpBackend, Handle, Pending, Support
from moerl_kernels.config import Capabilities, EpConfig
from moerl_kernels.errors import (
    EpConfigError,
    EpError,
    EpInputError,
    EpMismatch,
    EpOverflow,
    EpTimeout,
    EpUnavailable,
)
from moerl_kernels.group import EpGroup
from moerl_kernels.registry import BACKENDS, create

__all__ = [
    "BACKENDS",
    "Capabilities",
    "Dispatched",
    "EpBackend",
    "EpConfig",
    "EpConfigError",
    "EpError",
    "EpGroup",
    "EpInputError",
    "EpMismatch",
    "EpOverflow",
    "EpTimeout",
    "EpUnavailable",
    "Handle",
    "Pending",
    "Support",
    "create",
]
