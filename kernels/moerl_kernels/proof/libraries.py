"""Which communication libraries a process has mapped. The loader's word: neither pip's nor an environment variable's.

Two NCCLs in one process are a silent fault: torch's own older one wins the symbol lookup and GIN is off
(DeepEP issue #710; AWS's images uninstall the wheel for this reason).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from moerl_kernels.proof import elf
from moerl_kernels.proof.evidence import Library

_KNOWN = re.compile(r"^(libnccl-net[\w-]*|libnccl|libfabric|libgdrapi|libefa|libibverbs|libcudart|libcuda)[-.]")
# What the plugin file of aws-ofi-nccl exports (its doc/gin-getting-started.md): the proxy's tables, and v14 for GDA.
GDA_SYMBOL = "ncclGinPlugin_v14"
PLUGIN_PREFIXES = ("ncclNetPlugin_v", "ncclGinPlugin_v", "ncclRmaPlugin_v")
_INSTALLED = "opt/amazon/ofi-nccl/lib"


def mapped(root: Path = Path("/"), process: int | str = "self") -> tuple[Library, ...]:
    """Communication libraries in <root>/proc/<process>/maps, each file once; empty if it cannot be read."""
    try:
        text = (root / "proc" / str(process) / "maps").read_text(errors="replace")
    except OSError:
        return ()
    return parse_maps(text)


def parse_maps(text: str) -> tuple[Library, ...]:
    """The same of a maps file's text."""
    found: dict[str, Library] = {}
    for line in text.splitlines():
        columns = line.split(maxsplit=5)
        if len(columns) < 6 or not columns[5].startswith("/"):
            continue
        path = columns[5].removesuffix(" (deleted)")
        match = _KNOWN.match(Path(path).name)
        if match:
            found[path] = Library(match.group(1), path)
    return tuple(sorted(found.values(), key=lambda library: (library.name, library.path)))


def duplicates(libraries: Sequence[Library]) -> dict[str, tuple[str, ...]]:
    """Libraries of which more than one file is mapped."""
    paths: dict[str, list[str]] = {}
    for library in libraries:
        paths.setdefault(library.name, []).append(library.path)
    return {name: tuple(found) for name, found in paths.items() if len(found) > 1}


def plugin(root: Path, libraries: Sequence[Library], environment: Mapping[str, str]) -> str:
    """The network plugin: the mapped file, else the one that the environment names, else AWS's place; '' for none.

    NCCL takes a path as it is and completes a bare word to libnccl-net-<word>.so.
    """
    for library in libraries:
        if library.name.startswith("libnccl-net"):
            return library.path
    folder = root / _INSTALLED
    for variable in ("NCCL_GIN_PLUGIN", "NCCL_NET_PLUGIN"):
        named = environment.get(variable, "")
        if named.startswith("/"):
            return named
        path = folder / f"libnccl-net-{named}.so"
        if named and path.exists():
            return f"/{path.relative_to(root)}"
    for path in (folder / "libnccl-net-ofi.so", folder / "libnccl-net.so"):
        if path.exists():
            return f"/{path.relative_to(root)}"
    return ""


def plugin_symbols(root: Path, path: str) -> tuple[str, ...] | None:
    """Plugin tables that the file exports; None if there is no such file or it cannot be read."""
    if not path:
        return None
    try:
        names = elf.exported(root / path.lstrip("/"))
    except (OSError, elf.ElfError, ValueError):
        return None
    return tuple(name for name in names if name.startswith(PLUGIN_PREFIXES))
