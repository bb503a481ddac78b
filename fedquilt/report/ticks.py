"""Where an axis has its marks, and what they say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..words import PREFIXES
from .chart import Axis

CLOCK = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
WIDE = 3  # decades from which on a logarithmic axis has no marks but its decades


@dataclass(frozen=True)
class Scale:
    """An axis from ``low`` to ``high``, laid from ``start`` to ``end`` on the paper."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def at(self, v: float) -> float:
        """Where a value stands."""
        a, b, x = (math.log10(u) if self.axis.log else u for u in (self.low, self.high, v))
        return self.start + (x - a) / (b - a) * (self.end - self.start)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """The marks, at most about so many, and their texts."""
        if self.axis.log:
            found = _decades(self.low, self.high)
            if len(found) < 2:  # less than from one mark to the next
                found = [v for v in _round(self.low, self.high, 3, False) if v > 0]
            found = found[:: -(-len(found) // most)]
        else:
            unit = _unit(self.axis.kind, self.high)
            found = [v * unit for v in _round(self.low / unit, self.high / unit, most, self.axis.kind == "count")]
        return [(v, text(v, self.axis.kind, self.high)) for v in found]


def scale(axis: Axis, values: Iterable[float], start: float, end: float, zero: bool = False) -> Scale:
    """An axis that holds these values with a little room."""
    found = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)] or [0.1, 1.0]
    low, high = min(found), max(found)
    if axis.log:
        return Scale(axis, low / 1.25, high * 1.25, start, end)
    if zero:
        low = min(low, 0.0)
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    low, high = (low if zero and low == 0 else low - room), high + room
    if axis.kind == "share" and max(found) <= 1:
        high = min(high, 1.02)
    return Scale(axis, low, high, start, end)


def _unit(kind: str, high: float) -> float:
    return next((size for size, _ in CLOCK if high >= 2 * size), 1.0) if kind == "s" else 1.0


def _round(low: float, high: float, most: int, whole: bool) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    step = max(step, 1.0) if whole and high - low >= 1 else step
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    a, b = math.floor(math.log10(low)), math.ceil(math.log10(high))
    few = (1, 2, 5) if math.log10(high / low) < WIDE else (1,)
    return [m * 10.0**e for e in range(a, b + 1) for m in few if low <= m * 10.0**e <= high]


def text(value: float, kind: str, high: float) -> str:
    """A mark's number, with the unit of its axis."""
    if kind == "s":
        size, unit = next(((s, u) for s, u in CLOCK if high >= 2 * s), CLOCK[-1])
        return f"{value / size:.4g} {unit}"
    if kind in ("count", "share", "gain", "rate"):
        return f"{value:,.0f}" if abs(value) >= 1000 and value == int(value) else f"{value:.3g}"
    if kind == "percent":
        return f"{value:.0%}"
    for prefix in PREFIXES:
        if abs(value) < 999.5 or prefix == PREFIXES[-1]:
            break
        value /= 1000
    return f"{value:.3g} {prefix}{kind}"
