"""The same marks as a PDF for papers; the one module here that needs matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path as File
from typing import Any

from ..schema import BadSetting
from .draw import FAINT, INK, Mark, Path, Sketch, Spot, Text
from .svg import FAINT_OPACITY, outline

PIXELS = 96  # in an inch
POINT = 72 / PIXELS  # points in a pixel
PAINT = {INK: "#1a1a1a", FAINT: "#1a1a1a"}
NARROWER = 0.88  # matplotlib's letters are wider than those that pages use


def needed() -> None:
    """Refuse where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise BadSetting(
            "PDF figures need matplotlib: pip install 'fedquilt[report]'; the page saves its figures as SVG without it"
        )


def figure_of(sketch: Sketch) -> Any:
    """The sketch as a figure of matplotlib's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sketch.width / PIXELS, sketch.height / PIXELS))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, sketch.width), ylim=(sketch.height, 0))
    for z, mark in enumerate([*sketch.marks, *(m for _, _, marks in sketch.keys for m in marks)]):
        _put(axes, mark, z)
    return figure


def _put(axes: Any, m: Mark, z: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Polygon

    if isinstance(m, Path):
        opacity = m.opacity * (FAINT_OPACITY if FAINT in (m.stroke, m.fill) else 1)
        if m.fill:
            axes.add_patch(
                Polygon(m.points, closed=True, facecolor=PAINT.get(m.fill, m.fill), alpha=opacity, lw=0, zorder=z)
            )
            return
        xs, ys = zip(*m.points, strict=True)
        line = Line2D(xs, ys, color=PAINT.get(m.stroke, m.stroke), lw=m.width * POINT, alpha=opacity, zorder=z)
        if m.dash:
            line.set_linestyle((0, tuple(d / m.width for d in m.dash)))
        axes.add_line(line)
    elif isinstance(m, Spot):
        paint = {"facecolor": PAINT.get(m.colour, m.colour), "lw": 0, "alpha": m.opacity, "zorder": z}
        if m.shape == "circle":
            axes.add_patch(Circle((m.x, m.y), m.size, **paint))
        elif m.shape != "none":
            axes.add_patch(Polygon(outline(m), closed=True, **paint))
    else:
        axes.add_patch(_letters(m, z))


def _letters(m: Text, z: int) -> Any:
    """Words as outlines: no font to embed, which publishers ask for, and which takes a second a file."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    font = FontProperties(family="DejaVu Sans", weight="bold" if m.bold else "normal")
    path = TextPath((0, 0), m.text, size=m.size * NARROWER, prop=font)
    wide = path.get_extents().x1 if len(path.vertices) else 0.0
    left = m.x - {"start": 0.0, "middle": wide / 2, "end": wide}[m.anchor]
    upright = path.transformed(Affine2D().scale(1, -1).translate(left, m.y))
    return PathPatch(upright, facecolor=PAINT[INK], lw=0, zorder=z)


def save(sketch: Sketch, file: File, title: str) -> None:
    """Write it."""
    figure_of(sketch).savefig(file, format="pdf", metadata={"Title": title, "CreationDate": None})
