"""A chart as marks on paper: what the page shows, the .svg file holds and the .pdf file prints.

Colours are those of Okabe and Ito (2008), which the colour-blind can tell apart; yellow, too faint for
a line on white, is left out.  Dashes and markers say the same once more, for print in black and white.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from .chart import Axis, Chart, Dots, Grid, Line, Lines
from .table import shown
from .ticks import Scale, scale

T = TypeVar("T")

INK, FAINT = "ink", "faint"  # of text and axes; a page may turn them with its background
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2.5), (9, 3, 2, 3), (12, 3), (4, 2, 1, 2))
SHAPES = ("circle", "square", "up", "diamond", "down", "cross", "plus")

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, BOTTOM, TOP = 62, 18, 44, 30
LETTER = 6.6  # pixels of an average letter of 12
ROW = 22  # of the legend
MOST_MARKERS, MOST_POINTS = 40, 240


@dataclass(frozen=True)
class Path:
    """A line through points, or an area."""

    points: Sequence[tuple[float, float]]
    stroke: str = ""
    width: float = 1.0
    dash: Sequence[float] = ()
    fill: str = ""
    opacity: float = 1.0
    series: int | None = None


@dataclass(frozen=True)
class Spot:
    """A marker with its centre; ``says`` is what it stands for."""

    x: float
    y: float
    shape: str
    colour: str
    size: float = 4.0
    says: str = ""
    series: int | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Text:
    """Words, their ``anchor`` (start, middle, end) at a point on their base line."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: float = 12.0
    bold: bool = False
    series: int | None = None


Mark = Path | Spot | Text


@dataclass(frozen=True)
class Sketch:
    """Marks on paper of a size; ``keys`` are the marks of the legend, for each series."""

    width: float
    height: float
    marks: Sequence[Mark]
    keys: Sequence[tuple[int, str, Sequence[Mark]]] = ()


def style(series: int) -> tuple[str, Sequence[float], str]:
    """A series' colour, dash and marker; colours that come again have another marker, since dots have no dash."""
    again, colour = divmod(series, len(COLOURS))
    return COLOURS[colour], DASHES[series % len(DASHES)], SHAPES[(series + 4 * again) % len(SHAPES)]


def draw(chart: Chart, names: Sequence[str]) -> Sketch:
    """The chart with a legend of its series' names."""
    if isinstance(chart, Grid):
        return _grid(chart)
    used = sorted({m.series for m in (chart.lines if isinstance(chart, Lines) else chart.dots)})
    told = isinstance(chart, Dots) and all(chart.rows[d.row] == names[d.series] for d in chart.dots)  # by the rows
    keys, top = _legend([(i, names[i]) for i in used]) if len(used) > 1 and not told else ([], 4.0)
    if isinstance(chart, Lines):
        return _lines(chart, names, keys, top + TOP)
    return _dots(chart, names, keys, top + 8)


def _legend(items: Sequence[tuple[int, str]]) -> tuple[list[tuple[int, str, Sequence[Mark]]], float]:
    x, y = 8.0, 16.0
    keys: list[tuple[int, str, Sequence[Mark]]] = []
    for i, name in items:
        wide = 44 + LETTER * len(name) + 14
        if x + wide > WIDTH and x > 8:
            x, y = 8.0, y + ROW
        colour, dash, shape = style(i)
        keys.append((i, name, [
            Path([(x, y - 4), (x + 30, y - 4)], colour, 2, dash),
            Spot(x + 15, y - 4, shape, colour),
            Text(x + 36, y, name),
        ]))  # fmt: skip
        x += wide
    return keys, y + 8


def _frame(x: Scale, y: Scale | None, top: float, height: float) -> list[Mark]:
    """The axes with their marks; a line across at each mark."""
    marks: list[Mark] = []
    for v, said in x.ticks(7):
        at = x.at(v)
        marks.append(Path([(at, top), (at, height - BOTTOM)], FAINT, 0.5))
        marks.append(Text(at, height - BOTTOM + 17, said, "middle", 11))
    if y is not None:
        for v, said in y.ticks(6):
            at = y.at(v)
            marks.append(Path([(x.start, at), (x.end, at)], FAINT, 0.5))
            marks.append(Text(x.start - 7, at + 4, said, "end", 11))
        marks.append(Text(8, top - 12, y.axis.name + (" (log scale)" if y.axis.log else ""), size=12, bold=True))
    marks.append(Path([(x.start, height - BOTTOM), (x.end, height - BOTTOM)], INK, 1))
    name = x.axis.name + (" (log scale)" if x.axis.log else "")
    marks.append(Text(x.end, height - 8, name, "end", 12, bold=True))
    return marks


# ---- lines
def _lines(chart: Lines, names: Sequence[str], keys: Sequence[tuple[int, str, Sequence[Mark]]], top: float) -> Sketch:
    height = HEIGHT + top - TOP
    xs = [v for line in chart.lines for v in line.x]
    ys = [v for line in chart.lines for v in (*line.y, *line.low, *line.high)]
    ys += [] if chart.level is None else [chart.level]
    x = scale(chart.x, xs, LEFT, WIDTH - RIGHT, zero=chart.x.kind != "share")
    y = scale(chart.y, ys, height - BOTTOM, top)
    marks = _frame(x, y, top, height)
    if chart.level is not None:
        marks.append(Path([(x.start, y.at(chart.level)), (x.end, y.at(chart.level))], INK, 1, (3, 3)))
    for line in chart.lines:
        if line.low:
            there = [(x.at(a), y.at(b)) for a, b in zip(line.x, line.low, strict=True)]
            back = [(x.at(a), y.at(b)) for a, b in zip(line.x, line.high, strict=True)]
            colour = style(line.series)[0]
            marks.append(Path([*there, *reversed(back)], fill=colour, opacity=0.14, series=line.series))
    for line in chart.lines:
        marks += _line(line, names[line.series], x, y)
    return Sketch(WIDTH, height, marks, keys)


def _line(line: Line, name: str, x: Scale, y: Scale) -> list[Mark]:
    colour, dash, shape = style(line.series)
    pairs = [(a, b) for a, b in zip(line.x, line.y, strict=True) if a > 0 or not x.axis.log]
    points = [(x.at(a), y.at(b)) for a, b in thinned(pairs, MOST_POINTS)]
    if line.steps:
        points = [p for (a, b), (c, _) in zip(points, [*points[1:], points[-1]], strict=True) for p in ((a, b), (c, b))]
    marks: list[Mark] = [Path(points, colour, 2, dash, series=line.series)] if len(points) > 1 else []
    for a, b in thinned(pairs, MOST_MARKERS):
        says = f"{name}: {value(b, y.axis)} at {value(a, x.axis)}"
        marks.append(Spot(x.at(a), y.at(b), shape, colour, 3.5, says, line.series))
    return marks


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most so many of these, evenly, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def value(v: float, axis: Axis) -> str:
    """A number with its unit, or with the word of its axis."""
    said = shown(v, axis.kind)
    return f"{axis.name.split(',')[0]} {said}" if axis.kind in ("count", "share", "percent", "gain") else said


# ---- dots
def _dots(chart: Dots, names: Sequence[str], keys: Sequence[tuple[int, str, Sequence[Mark]]], top: float) -> Sketch:
    lanes = {row: sorted({d.series for d in chart.dots if d.row == row}) for row in range(len(chart.rows))}
    tall = {row: max(26, 13 * len(lane) + 12) for row, lane in lanes.items()}
    height = top + sum(tall.values()) + BOTTOM
    left = min(16 + LETTER * max(map(len, chart.rows)), WIDTH * 0.4)
    xs = [v for d in chart.dots for v in (d.x, d.low, d.high, *d.small) if v is not None]
    x = scale(chart.x, xs + ([] if chart.level is None else [chart.level]), left, WIDTH - RIGHT)
    marks = _frame(x, None, top, height)
    if chart.level is not None:
        marks.append(Path([(x.at(chart.level), top), (x.at(chart.level), height - BOTTOM)], INK, 1, (3, 3)))
    y = top
    for row, name in enumerate(chart.rows):
        marks.append(Text(left - 8, y + tall[row] / 2 + 4, name, "end", 12))
        for lane, series in enumerate(lanes[row]):
            at = y + tall[row] / 2 + 13 * (lane - (len(lanes[row]) - 1) / 2)
            colour, _, shape = style(series)
            for d in chart.dots:
                if (d.row, d.series) == (row, series) and (d.x > 0 or not chart.x.log):
                    ends = (d.x if d.low is None else d.low, d.x if d.high is None else d.high)
                    marks.append(Path([(x.at(ends[0]), at), (x.at(ends[1]), at)], colour, 2.5, (), series=series))
                    marks += [Spot(x.at(v), at, "circle", INK, 2, "", series, 0.7) for v in d.small]
                    said = shown(d.x, chart.x.kind)
                    within = "" if d.low is None else f" [{shown(d.low, chart.x.kind)}, {shown(d.high, chart.x.kind)}]"
                    where = name if names[series] == name else f"{name}, {names[series]}"
                    marks.append(Spot(x.at(d.x), at, shape, colour, 5, f"{where}: {said}{within}", series))
        y += tall[row]
    return Sketch(WIDTH, height, marks, keys)


# ---- a grid
def _grid(chart: Grid) -> Sketch:
    left, top = min(20 + LETTER * max(map(len, chart.rows)), WIDTH * 0.3), 34.0
    wide = min(34.0, (WIDTH - RIGHT - left) / len(chart.columns))
    tall = max(8.0, min(22.0, 420 / len(chart.rows)))
    height = top + tall * len(chart.rows) + BOTTOM
    most = max((n for column in chart.counts for n in column), default=0) or 1
    marks: list[Mark] = [Text(8, 16, chart.y, size=12, bold=True)]
    for j, name in enumerate(chart.rows):
        if tall >= 10 or j % 5 == 0:
            marks.append(Text(left - 8, top + tall * (j + 0.5) + 4, name, "end", 11))
    every = max(1, round(LETTER * max(map(len, chart.columns)) / wide + 0.9))
    for i, name in enumerate(chart.columns):
        if i % every == 0:
            marks.append(Text(left + wide * (i + 0.5), height - BOTTOM + 16, name, "middle", 11))
        for j, n in enumerate(chart.counts[i]):
            x, y = left + wide * i, top + tall * j
            box = [
                (x + 0.5, y + 0.5),
                (x + wide - 0.5, y + 0.5),
                (x + wide - 0.5, y + tall - 0.5),
                (x + 0.5, y + tall - 0.5),
            ]
            marks.append(
                Path(box, fill=COLOURS[0] if n else FAINT, opacity=0.12 + 0.88 * (n / most) ** 0.5 if n else 0.35)
            )
            if n:
                says = f"{chart.x} {name}, {chart.y} {chart.rows[j]}: {n:,.0f}"
                marks.append(Spot(x + wide / 2, y + tall / 2, "none", INK, 1, says))
    marks.append(Text(left + wide * len(chart.columns), height - 8, chart.x, "end", 12, bold=True))
    return Sketch(WIDTH, height, marks)
