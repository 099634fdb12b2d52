"""One kernel, compiled before it is needed and never again: its types and sizes are stated, not guessed from arguments.

triton.jit compiles at the first call, and once more whenever an argument happens to be 1 or a multiple of 16. On one
rank of several that is a skew of seconds in the middle of a step. Here the signature is explicit, so the same source
also compiles for sm_90 without a GPU (tests/kernels/test_ptx.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
import triton
from torch import Tensor
from triton.compiler import ASTSource

POINTER = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}

# What this process has compiled, by everything that decides it. One at a time: ranks may be threads.
_COMPILED: dict[str, Any] = {}
_COMPILING = threading.Lock()


def interpreted() -> bool:
    """Whether kernels run by Triton's interpreter, on tensors of the CPU."""
    return bool(triton.knobs.runtime.interpret)


class Program:
    """A kernel with its compile-time constants.

    types: of the run-time arguments, in order: `*bf16`, `*i32`, `i32`, ... constants: the rest, by name.
    """

    def __init__(self, kernel: Any, types: tuple[str, ...], constants: Mapping[str, Any], *, warps: int = 8) -> None:
        self.kernel = kernel
        self.constants = dict(constants)
        self.types = types
        self.warps = warps
        self._tail = tuple(constants[name] for name in kernel.arg_names[len(types) :])
        self._compiled: Any = None

    def source(self) -> ASTSource:
        """What triton.compile takes. Pointers are multiples of 16 (allocations are of 512), integers anything."""
        names = self.kernel.arg_names
        signature = dict(zip(names, self.types, strict=False)) | dict.fromkeys(names[len(self.types) :], "constexpr")
        hints = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(self.types) if kind.startswith("*")}
        return ASTSource(self.kernel, signature, {(names.index(n),): v for n, v in self.constants.items()}, hints)

    def prepare(self) -> None:
        """Compile and load. With the interpreter there is nothing to do."""
        if interpreted() or self._compiled is not None:
            return
        source = self.source()
        key = f"{torch.cuda.current_device()} {source.hash()} {self.warps}"
        with _COMPILING:
            if key not in _COMPILED:
                _COMPILED[key] = triton.compile(source, options={"num_warps": self.warps})
            self._compiled = _COMPILED[key]
            self._compiled[(1, 1, 1)]  # loads the module, which can wait for the device

    def launch(self, programs: int, *args: Tensor | int) -> None:
        """Run on the current stream."""
        if self._compiled is None:
            self.kernel[(programs, 1, 1)](*args, *self._tail)
        else:
            self._compiled[(programs, 1, 1)](*args, *self._tail)
