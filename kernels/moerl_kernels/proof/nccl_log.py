"""NCCL's log (NCCL_DEBUG=INFO, subsystems INIT,NET,ENV), reduced to what a transport proof can use.

Wordings: NCCL 2.27 to 2.31 (src/plugin/net.cc, src/plugin/gin.cc, src/transport/*.cc) and aws-ofi-nccl 1.17 to 1.21.
Lines that are not known are passed over, so that a new release loses facts and never invents one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from moerl_kernels.proof.evidence import GIN_EFA_GDA, GIN_PROXY, LogFacts

_VERSION = re.compile(r"\bNCCL version ([0-9][\w.+-]*)")
_NETWORK = re.compile(r"\bUsing network (\S+)")
_PROVIDER = re.compile(r"Selected provider is ([\w;]+)(?:, fabric is ([\w-]+))?(?: \(found (\d+) nics\))?")
_PROTOCOL = re.compile(r"Using transport protocol (\w+)")
_OFI = re.compile(r"Initializing aws-ofi-nccl (\S+)")
_LIBFABRIC = re.compile(r"Using Libfabric version (\S+)")
_GIN_ASSIGNED = re.compile(r"Assigned (?:GIN )?plugin (\S+)(?: type (\d+))? to comm")
_VIA = re.compile(r"\bvia (NET/[^\s/]+(?:/\d+)?(?:\(\d+\))?(?:/GDRDMA)?|P2P|SHM|direct)\b")
_RMA_PROXY = "using NCCL GIN proxy over RMA backend"
_GDA_CONTEXT = "gin GDAKI: createContext done"
_TROUBLE = (
    "No eligible providers",
    "found 0 nics",
    "Failed to initialize any GIN plugin",
    "Failed to initialize GDRCopy",
    "GIN requires GDRCopy",
    "cntr_open_ext failed",
    "Unexpected group size 0",
)
_MAX_TROUBLE = 8


def parse(lines: Iterable[str]) -> LogFacts:
    """The facts of any number of ranks' logs, in order; a later line of one kind replaces an earlier one."""
    out: dict[str, str] = {}
    networks: list[str] = []
    paths: Counter[str] = Counter()
    trouble: list[str] = []
    nics: int | None = None
    gin_type: int | None = None
    gda_context = False
    for line in lines:
        for key, pattern in (
            ("nccl_version", _VERSION),
            ("protocol", _PROTOCOL),
            ("ofi_version", _OFI),
            ("libfabric_version", _LIBFABRIC),
        ):
            if match := pattern.search(line):
                out[key] = match.group(1).rstrip(",")
        if (match := _NETWORK.search(line)) and match.group(1) not in networks:
            networks.append(match.group(1))
        if match := _PROVIDER.search(line):
            out["provider"] = match.group(2) or match.group(1)
            nics = int(match.group(3)) if match.group(3) else nics
        if (match := _GIN_ASSIGNED.search(line)) and "GIN" in line:
            gin_type = _gin_type(match.group(1), match.group(2))
        elif _RMA_PROXY in line:
            gin_type = GIN_PROXY
        gda_context = gda_context or _GDA_CONTEXT in line
        if match := _VIA.search(line):
            paths[_path(match.group(1))] += 1
        if any(sign in line for sign in _TROUBLE) and len(trouble) < _MAX_TROUBLE:
            trouble.append(_plain(line))
    return LogFacts(
        nccl_version=out.get("nccl_version", ""),
        networks=tuple(networks),
        provider=out.get("provider", ""),
        nics=nics,
        protocol=out.get("protocol", ""),
        ofi_version=out.get("ofi_version", ""),
        libfabric_version=out.get("libfabric_version", ""),
        gin_type=gin_type,
        gda_context=gda_context,
        paths=dict(sorted(paths.items())),
        trouble=tuple(trouble),
    )


def _gin_type(name: str, number: str | None) -> int | None:
    if number is not None:
        return int(number)
    # Older wording gives no number; the plugin of aws-ofi-nccl has two names, one for each type.
    return {"Libfabric_GDAKI": GIN_EFA_GDA, "Libfabric": GIN_PROXY}.get(name.rstrip(","))


def _path(words: str) -> str:
    """`NET/Libfabric/3(1)/GDRDMA` -> `NET/Libfabric/GDRDMA`: the device's number tells nothing here."""
    return re.sub(r"/\d+(\(\d+\))?", "", words)


def _plain(line: str) -> str:
    """Without host, process and device, so that ranks say the same."""
    return re.sub(r"^.*?NCCL (?:INFO|WARN) ", "", line.strip())[:200]
