"""Backend NVLink: kernels that store rows into the peers' memory. docs/kernels.md describes the protocol."""

from moerl_kernels.nvlink.backend import NVLink

__all__ = ["NVLink"]
