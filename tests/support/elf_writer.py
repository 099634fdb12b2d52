"""A minimal ELF-64 shared library: three sections, of which one holds dynamic symbols. Enough for a symbol reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable

GLOBAL, WEAK, LOCAL = 1, 2, 0


def library(defined: Iterable[str] = (), *, undefined: Iterable[str] = (), local: Iterable[str] = ()) -> bytes:
    """The file's bytes: `defined` symbols are global and exported, the others must not be found."""
    entries = [("", 0, 0), *((n, GLOBAL, 1) for n in defined), *((n, GLOBAL, 0) for n in undefined)]
    entries += [(n, LOCAL, 1) for n in local]
    strings, symbols = b"\0", b""
    for name, binding, section in entries:
        at = len(strings) if name else 0
        strings += name.encode() + b"\0" if name else b""
        symbols += struct.pack("<IBBHQQ", at, binding << 4 | 2, 0, section, 0x1000, 8)
    symbols_at = 64
    strings_at = symbols_at + len(symbols)
    table_at = strings_at + len(strings)
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (0, 11, 2, 0, symbols_at, len(symbols), 2, 1, 8, 24),  # SHT_DYNSYM, its strings are section 2
        (0, 3, 2, 0, strings_at, len(strings), 0, 0, 1, 0),  # SHT_STRTAB
    ]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 0, table_at, 0, 64, 56, 0, 64, len(sections), 0
    )
    return header + symbols + strings + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)
