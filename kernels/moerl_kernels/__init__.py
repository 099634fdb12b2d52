"""Expert-parallel dispatch and combine: one interface, several backends, none of which stands in for another.

group = EpGroup.of(device="cuda")
backend = create("NCCLAllToAll", EpConfig(num_experts=256, top_k=8, hidden=7168, max_tokens_per_rank=4096), group)
got = backend.dispatch(x, topk_idx, topk_weights)
out = backend.combine(experts(got), got.handle, weights=got.weights)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Imported at first use: torch takes 20 seconds and most of a gigabyte, which the preflight of a CPU pod has no use for.
_HOMES = {
    "moerl_kernels.backend": ("Dispatched", "EpBackend", "Handle", "Pending", "Support"),
    "moerl_kernels.config": ("Capabilities", "EpConfig"),
    "moerl_kernels.errors": (
        "EpConfigError",
        "EpError",
        "EpInputError",
        "EpMismatch",
        "EpOverflow",
        "EpTimeout",
        "EpUnavailable",
    ),
    "moerl_kernels.group": ("EpGroup",),
    "moerl_kernels.registry": ("BACKENDS", "create"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """A public name, from the module that it lives in."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
