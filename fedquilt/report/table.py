"""Tables and captions: values as they are, for a reader and for another program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..words import amount, clock, share

Value = str | int | float | None

SHOWN: Mapping[str, Callable[[Any], str]] = {
    "B": lambda v: amount(v, "B"),
    "FLOP": lambda v: amount(v, "FLOP"),
    "J": lambda v: amount(v, "J"),
    "s": clock,
    "share": share,
    "gain": lambda v: f"{v:+.3f}",
    "percent": lambda v: f"{v:.0%}",
    "p": lambda v: "<0.001" if v < 0.001 else f"{v:.3f}",
    "count": lambda v: f"{v:,.0f}" if v == int(v) else f"{v:,.1f}",
    "rate": lambda v: f"{v:.3g}",
}


def shown(value: Value, kind: str) -> str:
    """A value for a reader."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else SHOWN[kind](value)


@dataclass(frozen=True)
class Column:
    """The head of a column and what is in it: ``text`` or a kind of number."""

    name: str
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """Rows of values; ``note`` says what is left out."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""

    def plain(self) -> str:
        """The values with all their digits, between tabs: what a spreadsheet takes."""
        lines = [[c.name for c in self.columns], *([_plain(v) for v in row] for row in self.rows)]
        return "".join("\t".join(line) + "\n" for line in lines)


def _plain(value: Value) -> str:
    return "" if value is None else str(value).replace("\t", " ").replace("\n", " ")


@dataclass(frozen=True)
class Caption:
    """What every figure says of itself."""

    population: str
    model: str
    moment: str
    split: str
    pick: str
    note: str = ""

    @property
    def said(self) -> dict[str, str]:
        """Each of the five, by its name."""
        return {
            "Population": self.population,
            "Model": self.model,
            "Moment": self.moment,
            "Split": self.split,
            "Pick": self.pick,
        }

    def __str__(self) -> str:
        return " ".join([*(f"{name}: {text}." for name, text in self.said.items()), self.note]).strip()
