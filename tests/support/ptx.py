"""Compiles every NVLink kernel for sm_90 without a GPU and leaves the PTX in a folder: `python -m support.ptx FOLDER`.

A process of its own, because the tests' one has Triton's interpreter switched on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget

from moerl_kernels import EpConfig
from moerl_kernels.nvlink.layout import Layout
from moerl_kernels.nvlink.programs import Programs

BASE = {"num_experts": 256, "top_k": 8, "hidden": 7168, "size_mode": "static"}
CONFIGS = {
    "bf16": (2, EpConfig(**BASE, max_tokens_per_rank=8192)),
    "fp8": (2, EpConfig(**BASE, max_tokens_per_rank=8192, wire="fp8")),
    "few": (4, EpConfig(**BASE, max_tokens_per_rank=128)),
    "compact": (2, EpConfig(**BASE, max_tokens_per_rank=512, layout="compact")),
}


def main(folder: Path) -> None:
    """One file per kernel and configuration."""
    for name, (ranks, config) in CONFIGS.items():
        for kernel, program in Programs.of(Layout(config, ranks)).all().items():
            compiled = triton.compile(
                program.source(), target=GPUTarget("cuda", 90, 32), options={"num_warps": program.warps}
            )
            (folder / f"{name}-{kernel}.ptx").write_text(compiled.asm["ptx"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
