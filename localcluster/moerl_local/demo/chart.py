"""A curve in a terminal, out of braille characters: two by four dots a cell."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
# Bits of the braille block U+2800 by (column, row) within a cell.
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def curve(points: Sequence[Point], *, width: int = 60, height: int = 8, x_max: float = 0.0) -> list[str]:
    """Lines of a chart of y in 0…1 over x, with both axes labelled; empty points give empty axes.

    Args:
        x_max: right end of the x axis, where known beforehand; the largest x otherwise.
    """
    right = max([x_max, *(x for x, _ in points), 1.0])
    cells = [[0] * width for _ in range(height)]
    dots_wide, dots_high = width * 2, height * 4
    previous: tuple[int, int] | None = None
    for x, y in sorted(points):
        column = min(dots_wide - 1, round(x / right * (dots_wide - 1)))
        row = round((1 - min(1.0, max(0.0, y))) * (dots_high - 1))
        for c, r in _line(previous or (column, row), (column, row)):
            cells[r // 4][c // 2] |= _BITS[c % 2][r % 4]
        previous = column, row
    lines = []
    for index, row_cells in enumerate(cells):
        label = {0: "1.0", height // 2: "0.5", height - 1: "0.0"}.get(index, "")
        lines.append(f"{label:>4} ┤" + "".join(chr(0x2800 + bits) for bits in row_cells))
    lines.append("     └" + "─" * width)
    lines.append("      0" + f"{right:g}".rjust(width - 1) + "  iteration")
    return lines


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * i / steps), round(start[1] + (end[1] - start[1]) * i / steps))
        for i in range(steps + 1)
    ]
