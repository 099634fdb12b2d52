"""The few SVG elements that the report's pictures are made of; colours are classes of the page's style sheet."""

from __future__ import annotations

from html import escape


def document(width: float, height: float, label: str, *parts: str) -> str:
    """A picture that scales with the page; `label` is what a screen reader says."""
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
    return opening + "".join(parts) + "</svg>"


def text(content: str, x: float, y: float, css: str = "tick", *, anchor: str = "start", title: str = "") -> str:
    """A line of text."""
    inner = escape(content) + _title(title)
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inner}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str, *, arrows: str = "", title: str = "") -> str:
    """A straight line; `arrows` is any of "start", "end" and "both"."""
    ends = {"end": ("end",), "start": ("start",), "both": ("start", "end")}.get(arrows, ())
    markers = "".join(f' marker-{end}="url(#tip)"' for end in ends)
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{css}" {where}{markers}>{_title(title)}</line>'


def box(x: float, y: float, width: float, height: float, css: str, *, radius: float = 3, title: str = "") -> str:
    """A rectangle with round corners."""
    where = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"'
    return f'<rect class="{css}" {where}>{_title(title)}</rect>'


def circle(x: float, y: float, radius: float, css: str, *, title: str = "") -> str:
    """A dot."""
    return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{_title(title)}</circle>'


def arrow_head() -> str:
    """The marker that lines with arrows refer to."""
    size = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    head = '<path class="tip" d="M0 0 L8 4 L0 8 z"/>'
    return f'<defs><marker id="tip" {size} orient="auto-start-reverse">{head}</marker></defs>'


def _title(content: str) -> str:
    return f"<title>{escape(content)}</title>" if content else ""
