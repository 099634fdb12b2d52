"""Whether a deep_ep that the adapter can use is installed: features first, versions second.

PyPI's `deep-ep` is not DeepSeek's, V1 has no ElasticBuffer, and V2.5 splits it: so signatures are looked at. deep_ep's
import compares the mapped libnccl with the one that it was built for; two of them in one process switch GIN off.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from moerl_kernels.backend import Support
from moerl_kernels.errors import EpUnavailable
from moerl_kernels.proof import devices, libraries

# What the adapter calls by name (deep_ep 2.1.0, deep_ep/buffers/elastic.py).
NEEDED = {
    "__init__": ("group", "num_max_tokens_per_rank", "hidden", "num_topk", "use_fp8_dispatch", "deterministic",
                 "allow_hybrid_mode", "explicitly_destroy"),
    "dispatch": ("x", "topk_idx", "topk_weights", "num_experts", "num_max_tokens_per_rank", "expert_alignment",
                 "num_sms", "handle", "do_cpu_sync", "do_expand", "use_tma_aligned_col_major_sf"),
    "combine": ("x", "handle", "topk_weights"),
    "destroy": (),
}  # fmt: skip
# ncclGetLsaDevicePointer and the rest of the device API that deep_ep links (DeepEP issue #710).
MIN_NCCL = 23004


def module() -> Any:
    """deep_ep, imported. EpUnavailable with the import's own words."""
    try:
        return importlib.import_module("deep_ep")
    except Exception as error:  # its import checks assert, and its libraries may not load
        raise EpUnavailable(f"deep_ep cannot be imported: {type(error).__name__}: {error}") from error


def probe() -> Support:
    """Every reason against deep_ep on this rank. Raises nothing; imports deep_ep and reads files."""
    if importlib.util.find_spec("deep_ep") is None:
        return Support(False, ("deep_ep is not installed",))
    reasons = []
    try:
        found = module()
    except EpUnavailable as error:
        return Support(False, (str(error),))
    reasons += missing(found)
    mapped = libraries.mapped()
    nccl = [library.path for library in mapped if library.name == "libnccl"]
    if len(nccl) > 1:
        reasons.append(f"two NCCLs are mapped, and GIN would be off: {', '.join(nccl)}; uninstall one")
    code = nccl_code(nccl[0]) if len(nccl) == 1 else None
    if code is not None and code < MIN_NCCL:
        reasons.append(f"{nccl[0]} is NCCL {code}, deep_ep needs at least {MIN_NCCL} (2.30.4)")
    if not nccl:
        reasons.append("no NCCL is mapped: torch was built without it")
    if not nvcc():
        reasons.append("nvcc was not found (CUDA_HOME, CUDA_PATH, PATH): deep_ep compiles its kernels at run time")
    if not devices.count(os.environ):
        reasons.append("this container has no GPU")
    return Support(not reasons, tuple(reasons), versions(found) | ({"nccl": str(code)} if code else {}))


def missing(found: Any) -> list[str]:
    """What of ElasticBuffer's signatures is not as the adapter needs it."""
    buffer = getattr(found, "ElasticBuffer", None)
    if buffer is None:
        return ["deep_ep has no ElasticBuffer: version 2 is needed (V1 has Buffer, V2.5 splits it)"]
    out = []
    for name, wanted in NEEDED.items():
        method = getattr(buffer, name, None)
        if method is None:
            out.append(f"deep_ep's ElasticBuffer has no {name}")
            continue
        have = inspect.signature(method).parameters
        lacking = [parameter for parameter in wanted if parameter not in have]
        if lacking:
            out.append(f"deep_ep's ElasticBuffer.{name} has no parameter {', '.join(lacking)}")
    return out


def versions(found: Any) -> dict[str, str]:
    """Version and variant: AWS's fork keeps a token map in its handles, which upstream's have not."""
    version = getattr(found, "__version__", None)
    for name in ("deep_ep", "deep-ep"):
        try:
            version = version or metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    handle = getattr(found, "EPHandle", None)
    fork = "token_map_at_dispatch" in (getattr(handle, "__annotations__", None) or {})
    return {"deep_ep": str(version or "unknown"), "variant": "aws" if fork else "upstream"}


def nccl_code(path: str) -> int | None:
    """ncclGetVersion of a mapped library, which talks to no device: 2.30.4 is 23004."""
    try:
        value = ctypes.c_int()
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(value))
    except (OSError, AttributeError):
        return None
    return value.value


def nvcc() -> str | None:
    """The compiler, found as deep_ep finds it."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            path = Path(home) / "bin/nvcc"
            return str(path) if path.exists() else None
    default = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(default) if default.exists() else None)


def node() -> str:
    """The node of this rank: ranks of one boot share memory and NVLink."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
