"""The report's pictures: curves, the timeline, and roles on their node groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moerl_local.demo import svg

Point = tuple[float, float]
WIDTH = 860


def clock(seconds: float) -> str:
    """Seconds as m:ss."""
    whole = round(seconds)
    return f"{'-' if whole < 0 else ''}{abs(whole) // 60}:{abs(whole) % 60:02d}"


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its label, its CSS class and its points (y in 0…1)."""

    label: str
    css: str
    points: Sequence[Point]


def curves(series: Sequence[Series], *, x_label: str, height: int = 300) -> str:
    """A line chart with labelled axes and a legend in the lines' colours."""
    left, right, top, bottom = 44, WIDTH - 16, 28, height - 40
    x_max = max([x for one in series for x, _ in one.points] or [1.0]) or 1.0

    def place(point: Point) -> Point:
        x, y = point
        return left + x / x_max * (right - left), bottom - min(1.0, max(0.0, y)) * (bottom - top)

    out = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        _, y = place((0, tick))
        out += [svg.line(left, y, right, y, "grid"), svg.text(f"{tick:g}", left - 8, y + 4, anchor="end")]
    out += [svg.text(f"{tick:g}", place((tick, 0))[0], bottom + 18, anchor="middle") for tick in _ticks(x_max, _COUNTS)]
    out.append(svg.text(x_label, right, height - 6, anchor="end"))
    legend = float(left)
    for one in series:
        places = [place(point) for point in one.points]
        out.append(f'<polyline class="line {one.css}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        if len(places) <= 40:
            out += [svg.circle(x, y, 3, f"dot {one.css}") for x, y in places]
        out += [svg.line(legend, 12, legend + 22, 12, f"line {one.css}"), svg.text(one.label, legend + 28, 16, "label")]
        legend += 52 + 6.6 * len(one.label)
    return svg.document(WIDTH, height, f"reward by {x_label}", *out)


_COUNTS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 5000)
_SECONDS = (5, 10, 15, 30, 60, 120, 300, 600, 1800)


def _ticks(most: float, steps: Sequence[int]) -> list[float]:
    step = next((s for s in steps if most / s <= 9), steps[-1])
    return [float(i * step) for i in range(int(most // step) + 1)]


@dataclass(frozen=True, slots=True)
class Span:
    """One bar of the timeline, in seconds; `marks` are moments on it with what happened then."""

    label: str
    css: str
    start: float
    end: float
    note: str = ""
    marks: tuple[tuple[float, str], ...] = ()


def timeline(spans: Sequence[Span], *, moments: Sequence[tuple[float, str]] = ()) -> str:
    """Bars over a common time axis (m:ss); `moments` are vertical lines with a title."""
    left, right, row, top = 236, WIDTH - 56, 21, 24
    most = max([span.end for span in spans] + [at for at, _ in moments] + [1.0])
    height = top + row * len(spans) + 12

    def x(value: float) -> float:
        return left + value / most * (right - left)

    out = []
    for tick in _ticks(most, _SECONDS):
        out += [
            svg.line(x(tick), top - 4, x(tick), height - 8, "grid"),
            svg.text(clock(tick), x(tick), 12, anchor="middle"),
        ]
    out += [
        svg.line(x(at), top - 4, x(at), height - 8, "moment", title=f"{title} {clock(at)}") for at, title in moments
    ]
    for number, span in enumerate(spans):
        y = top + row * number
        wide = max(2.0, x(span.end) - x(span.start))
        hover = f"{span.label}: {clock(span.start)} to {clock(span.end)} {span.note}".strip()
        out.append(svg.text(span.label, left - 10, y + 14, "label", anchor="end"))
        out.append(svg.box(x(span.start), y + 3, wide, 14, f"bar {span.css}", title=hover))
        out += [svg.circle(x(at), y + 10, 4, "mark", title=f"{what} {clock(at)}") for at, what in span.marks]
        if span.note:
            out.append(svg.text(span.note, x(span.start) + wide + 6, y + 14))
    return svg.document(WIDTH, height, "Timeline", *out)


@dataclass(frozen=True, slots=True)
class Box:
    """One role: what it does, its node group, and its pods as (name, CSS class of its state, state in words)."""

    role: str
    what: str
    group: str
    pods: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class _Placed:
    box: Box
    x: float
    y: float
    tall: float

    @property
    def middle(self) -> float:
        return self.x + _WIDE / 2

    @property
    def bottom(self) -> float:
        return self.y + self.tall


# Columns of the picture from left to right; what gives the reward stands below the buffer and the rollouts.
_COLUMN = {"trainer": 24, "buffer": 320, "reward": 320, "rollout": 616, "environment": 616}
_WIDE = 218
_TOP = 44


def roles(boxes: Sequence[Box], *, node: str) -> str:
    """The roles as pods on their node groups, and what flows between them."""
    upper = [
        _Placed(box, _COLUMN[box.role], _TOP, _tall(box))
        for box in boxes
        if box.role in ("trainer", "buffer", "rollout")
    ]
    second = max((placed.bottom for placed in upper), default=_TOP) + 62
    lower = [
        _Placed(box, _COLUMN[box.role], second, _tall(box)) for box in boxes if box.role in ("reward", "environment")
    ]
    placed = {one.box.role: one for one in (*upper, *lower)}
    floor = max([second + 40, *(one.bottom for one in placed.values())]) + 16
    out = [svg.arrow_head(), svg.box(6, 26, WIDTH - 12, floor - 26, "node", radius=12), svg.text(node, 20, 18)]
    out += _flows(placed, second)
    for one in placed.values():
        out += _box(one)
    return svg.document(WIDTH, floor + 6, "Roles, pods and node groups", *out)


def _tall(box: Box) -> float:
    return 78 + 20 * max(1, len(box.pods))


def _box(placed: _Placed) -> list[str]:
    box, x, y = placed.box, placed.x, placed.y
    out = [svg.box(x, y, _WIDE, placed.tall, "group", radius=9), svg.text(box.role, x + 14, y + 24, "role")]
    out.append(svg.text(box.what, x + 14, y + 41))
    for number, (name, css, state) in enumerate(box.pods):
        line = y + 62 + 20 * number
        out.append(svg.circle(x + 20, line - 4, 5, f"pod {css}", title=state))
        out.append(svg.text(name, x + 32, line, "pod-name", title=f"{name}: {state}"))
    return [*out, svg.text(box.group, x + 14, placed.bottom - 9, "tick group-name")]


def _flows(placed: dict[str, _Placed], second: float) -> list[str]:
    out: list[str] = []
    if "buffer" in placed:
        for role, forth, back in (("trainer", "weights", "batches"), ("rollout", "samples", "work, weights")):
            if role in placed:
                out += _beside(placed[role], placed["buffer"], forth, back)
    for role in ("reward", "environment"):
        if role in placed and "rollout" in placed:
            start, end = placed["rollout"], placed[role]
            x1, x2 = (start.middle, end.middle) if start.x == end.x else (start.x + 30, end.x + _WIDE - 30)
            out.append(svg.line(x1, start.bottom, x2, end.y, "flow", arrows="both"))
            out.append(svg.text("answers, rewards", (x1 + x2) / 2 + 8, (start.bottom + end.y) / 2 + 4))
    if "trainer" in placed:
        trainer = placed["trainer"]
        out.append(svg.line(trainer.middle, trainer.bottom, trainer.middle, second, "flow", arrows="end"))
        out.append(svg.text("checkpoints, final policy", trainer.middle + 8, (trainer.bottom + second) / 2 + 4))
        out.append(svg.box(trainer.x, second, _WIDE, 36, "store", radius=18))
        out.append(svg.text("S3 (the AWS emulator)", trainer.middle, second + 23, "label", anchor="middle"))
    return out


def _beside(role: _Placed, buffer: _Placed, forth: str, back: str) -> list[str]:
    """Two arrows between a role and the buffer next to it: what it brings above, what it fetches below."""
    near, far = (role.x, buffer.x + _WIDE) if role.x > buffer.x else (role.x + _WIDE, buffer.x)
    y, middle = _TOP + 34, (near + far) / 2
    return [
        svg.line(near, y, far, y, "flow", arrows="end"),
        svg.line(far, y + 34, near, y + 34, "flow", arrows="end"),
        svg.text(forth, middle, y - 6, "tick flow-name", anchor="middle"),
        svg.text(back, middle, y + 48, "tick flow-name", anchor="middle"),
    ]
