"""Exported symbols of a shared library, read from its file and never by loading it.

Loading a network plugin to see what it can do would start it: libfabric's providers open devices in their constructors.
Layout: System V ABI, ELF-64; only little-endian files, which are all that EFA instances run.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_DYNSYM = 11
_MAX_TABLE = 64 << 20  # bytes of one table; a corrupt header must not read the disk into memory


class ElfError(ValueError):
    """The file is no ELF-64 library whose dynamic symbols can be read; the message says why."""


def exported(path: Path) -> tuple[str, ...]:
    """Names of the global and weak symbols that a library defines, sorted. ElfError, OSError."""
    with path.open("rb") as file:
        size = path.stat().st_size
        header = _read(file, 0, _HEADER.size, size)
        identity, _, _, _, _, _, sections_at, _, _, _, _, entry, count, _ = _HEADER.unpack(header)
        if identity[:4] != b"\x7fELF":
            raise ElfError(f"{path} is no ELF file")
        if identity[4:6] != b"\x02\x01":
            raise ElfError(f"{path} is not 64-bit little-endian")
        if not count or entry < _SECTION.size:
            raise ElfError(f"{path} has no section headers")
        table = _read(file, sections_at, entry * count, size)
        sections = [_SECTION.unpack_from(table, entry * i) for i in range(count)]
        names: set[str] = set()
        for _, kind, _, _, offset, length, link, _, _, _ in sections:
            if kind == _SHT_DYNSYM:
                if link >= count:
                    raise ElfError(f"{path}: the symbol table names string table {link} of {count} sections")
                strings = _read(file, sections[link][4], sections[link][5], size)
                names |= _defined(_read(file, offset, length, size), strings)
        return tuple(sorted(names))


def _defined(symbols: bytes, strings: bytes) -> set[str]:
    found = set()
    for at in range(0, len(symbols) - _SYMBOL.size + 1, _SYMBOL.size):
        name, info, _, section, _, _ = _SYMBOL.unpack_from(symbols, at)
        if section and info >> 4 in (1, 2) and name < len(strings):  # STB_GLOBAL, STB_WEAK; section 0 is undefined
            found.add(strings[name : strings.index(b"\0", name)].decode("utf-8", "replace"))
    return found - {""}


def _read(file: BinaryIO, offset: int, length: int, size: int) -> bytes:
    if length > _MAX_TABLE or offset + length > size:
        raise ElfError(f"a table of {length} bytes at {offset} does not fit a file of {size} bytes")
    file.seek(offset)
    return file.read(length)
