"""Marks as SVG: inside a page, where ink follows the page's, or as a file of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from .draw import FAINT, INK, Mark, Sketch, Spot, Text

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
PAINT = {INK: "currentColor", FAINT: "currentColor"}
FAINT_OPACITY = 0.22


def svg(sketch: Sketch, title: str, says: str, name: str = "", alone: bool = False) -> str:
    """The sketch; ``title`` and ``says`` are for those who do not see it.  ``name`` makes ids unique in a page."""
    size = f'viewBox="0 0 {_n(sketch.width)} {_n(sketch.height)}"'
    if alone:
        size += f' width="{_n(sketch.width)}" height="{_n(sketch.height)}" color="#1a1a1a"'
        size += ' xmlns="http://www.w3.org/2000/svg"'
    parts = [
        f'<svg {size} role="img" aria-labelledby="{name}-t {name}-d" font-family="{FONT}">',
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(says)}</desc>',
    ]
    parts += _marks(sketch.marks)
    for series, called, marks in sketch.keys:
        button = (
            ""
            if alone
            else f' class="key" role="button" tabindex="0" aria-pressed="true" aria-label="{escape(called)}"'
        )
        parts += [f'<g data-key="{series}"{button}>', *_marks(marks), "</g>"]
    return "".join([*parts, "</svg>"])


def _marks(marks: Iterable[Mark]) -> list[str]:
    return [_mark(m) for m in marks]


def _mark(m: Mark) -> str:
    mine = "" if m.series is None else f' data-s="{m.series}"'
    if isinstance(m, Text):
        weight = ' font-weight="600"' if m.bold else ""
        anchor = "" if m.anchor == "start" else f' text-anchor="{m.anchor}"'
        return (
            f'<text x="{_n(m.x)}" y="{_n(m.y)}" font-size="{_n(m.size)}"{anchor}{weight} fill="currentColor"{mine}>'
            f"{escape(m.text)}</text>"
        )
    if isinstance(m, Spot):
        return _spot(m, mine)
    points = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in m.points) + ("Z" if m.fill else "")
    opacity = m.opacity * (FAINT_OPACITY if FAINT in (m.stroke, m.fill) else 1)
    said = f'fill="{PAINT.get(m.fill, m.fill) or "none"}"'
    if m.stroke:
        said += f' stroke="{PAINT.get(m.stroke, m.stroke)}" stroke-width="{_n(m.width)}" stroke-linejoin="round"'
    if m.dash:
        said += f' stroke-dasharray="{" ".join(map(_n, m.dash))}"'
    if opacity < 1:
        said += f' opacity="{_n(opacity)}"'
    return f'<path d="{points}" {said}{mine}/>'


def _spot(m: Spot, mine: str) -> str:
    says = f"<title>{escape(m.says)}</title>" if m.says else ""
    hover = f' class="spot" data-x="{_n(m.x)}" data-y="{_n(m.y)}"' if m.says else ""
    if m.shape == "none":
        return f"<g{hover}{mine}>{says}</g>"
    paint = f'fill="{PAINT.get(m.colour, m.colour)}"'
    if m.opacity < 1:
        paint += f' opacity="{_n(m.opacity)}"'
    if m.shape == "circle":
        return f'<circle cx="{_n(m.x)}" cy="{_n(m.y)}" r="{_n(m.size)}" {paint}{hover}{mine}>{says}</circle>'
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in outline(m))
    return f'<polygon points="{points}" {paint}{hover}{mine}>{says}</polygon>'


def outline(m: Spot) -> list[tuple[float, float]]:
    """The corners of a marker."""
    if m.shape in ("cross", "plus"):
        arm, half = m.size * 1.25, m.size * 0.4
        corners = [(-half, -arm), (half, -arm), (half, -half), (arm, -half), (arm, half), (half, half)]
        corners += [(half, arm), (-half, arm), (-half, half), (-arm, half), (-arm, -half), (-half, -half)]
        turn = math.pi / 4 if m.shape == "cross" else 0.0
        c, s = math.cos(turn), math.sin(turn)
        return [(m.x + c * x - s * y, m.y + s * x + c * y) for x, y in corners]
    n, turn, grow = {"square": (4, 45, 1.2), "diamond": (4, 0, 1.35), "up": (3, -90, 1.4), "down": (3, 90, 1.4)}[
        m.shape
    ]
    angles = [math.radians(turn + 360 * i / n) for i in range(n)]
    return [(m.x + grow * m.size * math.cos(a), m.y + grow * m.size * math.sin(a)) for a in angles]


def _n(v: float) -> str:
    """A number in as few digits as anybody can see."""
    return f"{v:.2f}".rstrip("0").rstrip(".")
