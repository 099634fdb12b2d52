"""What the compiler makes of NVLink's kernels for sm_90: fences, barriers and wide stores. Needs no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
POST = re.compile(r"atom\.global\.(sys\.release|release\.sys)\.exch")
POLL = re.compile(r"(ld|atom)\.(global\.)?(sys\.acquire|acquire\.sys)|(ld|atom)\.acquire\.sys")
STORE = re.compile(r"\bst\.global")
ROWS = re.compile(r"\b(ld|st)\.global\.v4\.b32")
# How many 16-byte stores a step of each row mover ends in, at least; anything narrower than 4 bytes is a lost hint.
WIDE = {"bf16-dispatch": 68, "bf16-combine": 2, "fp8-dispatch": 34, "few-dispatch": 38, "few-combine": 4}


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines of every kernel's PTX, by configuration and kernel."""
    folder = tmp_path_factory.mktemp("ptx")
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    command = [sys.executable, "-m", "support.ptx", str(folder)]
    done = subprocess.run(command, env=clean | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.stem: path.read_text().splitlines() for path in sorted(folder.glob("*.ptx"))}


def talking(ptx: dict[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """The kernels that leave words in other ranks' arenas."""
    for name, lines in ptx.items():
        if name.endswith(("dispatch", "combine", "exchange")):
            yield name, lines


def test_every_kernel_compiles(ptx: dict[str, list[str]]) -> None:
    """Six kernels of each configuration."""
    assert len(ptx) == 24


def test_a_barrier_stands_between_payload_and_flag(ptx: dict[str, list[str]]) -> None:
    """Other warps' stores must not pass the release; Triton 3.6 puts no barrier there by itself."""
    for name, lines in talking(ptx):
        posts, since = 0, "nothing"
        for number, line in enumerate(lines):
            if STORE.search(line):
                since = f"a store in line {number}"
            elif "bar.sync" in line:
                since = ""
            elif POST.search(line):
                posts += 1
                assert not since, f"{name}: no barrier between {since} and the release in line {number}"
        assert posts, f"{name} posts nothing with .release.sys"


def test_a_barrier_stands_between_flag_and_payload(ptx: dict[str, list[str]]) -> None:
    """One thread acquires; the others read rows only after a barrier."""
    for name, lines in talking(ptx):
        polls, waiting = 0, None
        for number, line in enumerate(lines):
            if POLL.search(line):
                polls, waiting = polls + 1, number
            elif "bar.sync" in line:
                waiting = None
            elif ROWS.search(line):
                assert waiting is None, f"{name}: rows in line {number} after the acquire in line {waiting}, no barrier"
        assert polls, f"{name} waits for nothing with .acquire.sys"


@pytest.mark.parametrize("name", WIDE)
def test_row_movers_store_16_bytes(ptx: dict[str, list[str]], name: str) -> None:
    """To peers too, whose addresses come from a table: without the hint those stores are 2 or 4 bytes wide."""
    lines = ptx[name]
    wide = sum("st.global.v4.b32" in line for line in lines)
    narrow = [line for line in lines if re.search(r"st\.global\.(b8|b16|v2\.b16|v4\.b16)", line)]
    assert not narrow, f"{name}: {narrow[:3]}"
    assert wide >= WIDE[name], f"{name}: {wide} stores of 16 bytes"


def test_no_kernel_can_trap_or_uses_the_read_only_path(ptx: dict[str, list[str]]) -> None:
    """A time-out must leave the context alive, and received rows must not come from a cache that is not coherent."""
    for name, lines in ptx.items():
        assert not [line for line in lines if re.search(r"\btrap;|ld\.global\.nc", line)], name
