"""What a figure shows, before it is drawn: lines, dots or a grid, on axes with units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .table import Caption, Table


@dataclass(frozen=True)
class Axis:
    """A name and the kind of its numbers (see :mod:`.ticks`); ``log`` if equal factors are equally far."""

    name: str
    kind: str = "count"
    log: bool = False


@dataclass(frozen=True)
class Line:
    """A series along x, with a band from ``low`` to ``high`` where there is one; ``steps``: it jumps."""

    series: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    steps: bool = False


@dataclass(frozen=True)
class Dot:
    """A value in a row, with an interval and smaller dots (one a seed)."""

    series: int
    row: int
    x: float
    low: float | None = None
    high: float | None = None
    small: Sequence[float] = ()


@dataclass(frozen=True)
class Lines:
    """Series on two axes; ``level``: a y that is drawn across."""

    x: Axis
    y: Axis
    lines: Sequence[Line]
    level: float | None = None


@dataclass(frozen=True)
class Dots:
    """Values in rows."""

    x: Axis
    rows: Sequence[str]
    dots: Sequence[Dot]
    level: float | None = None


@dataclass(frozen=True)
class Grid:
    """How many there are in each column and row."""

    x: str
    y: str
    columns: Sequence[str]
    rows: Sequence[str]
    counts: Sequence[Sequence[float]]  # by column


Chart = Lines | Dots | Grid


@dataclass(frozen=True)
class Figure:
    """Charts of one matter, by what is on the axes (``views``: x and y in words), its caption and its table."""

    name: str
    title: str
    caption: Caption
    views: Mapping[tuple[str, str], Chart]
    table: Table
    series: Sequence[str] = field(default=())
