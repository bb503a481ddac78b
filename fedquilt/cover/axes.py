"""What the axes of a model's tensors are made of: units, by group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Params = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Axis:
    """An axis made of the units of ``group``.

    Unit ``u`` of ``n`` owns the entries ``(r * n + u) * block + b`` for every ``r < repeat`` and
    ``b < block``: ``block`` for flattened maps and attention heads, ``repeat`` for LSTM gates.
    """

    group: str
    block: int = 1
    repeat: int = 1

    def units(self, size: int) -> int:
        """How many units an axis of ``size`` entries holds."""
        n, rest = divmod(size, self.block * self.repeat)
        if rest:
            raise ValueError(f"an axis of {size} entries is no multiple of block {self.block} x repeat {self.repeat}")
        return n

    def entries(self, units: Tensor, size: int) -> Tensor:
        """The entries that belong to ``units`` on an axis of ``size`` entries, in unit order."""
        n = self.units(size)
        rows = torch.arange(self.repeat)[:, None] * n + units
        return (rows[:, :, None] * self.block + torch.arange(self.block)).flatten()


# What one axis is made of: units; parts one after another, of which a number stands for entries of no group; neither.
Along = Axis | tuple[Axis | int, ...] | None
Axes = Mapping[str, tuple[Along, ...]]


@dataclass(frozen=True)
class Place:
    """Where units of a group stand: on axis ``dim`` of tensor ``name``, ``length`` entries from ``start`` on."""

    name: str
    dim: int
    axis: Axis
    start: int
    length: int

    @property
    def units(self) -> int:
        """How many units the group has."""
        return self.axis.units(self.length)

    def entries(self, units: Tensor) -> Tensor:
        """The entries that belong to ``units``, in unit order."""
        return self.start + self.axis.entries(units, self.length)


def places(axes: Axes, shapes: Shapes) -> Iterator[Place]:
    """Where the units of all groups stand."""
    sizes = group_sizes(axes, shapes)
    for k, row in axes.items():
        for d, (along, n) in enumerate(zip(row, shapes[k], strict=True)):
            for a, start, length in laid(along, n, sizes):
                if a is not None:
                    yield Place(k, d, a, start, length)


def laid(along: Along, n: int, sizes: Mapping[str, int]) -> Iterator[tuple[Axis | None, int, int]]:
    """The parts of an axis of ``n`` entries: whose units (None: nobody's), from where on, how many entries."""
    if not isinstance(along, tuple):
        yield along, 0, n
        return
    start = 0
    for a in along:
        length = a if isinstance(a, int) else sizes[a.group] * a.block * a.repeat
        yield None if isinstance(a, int) else a, start, length
        start += length
    if start != n:
        raise ValueError(f"an axis has {n} entries, its parts {along} have {start}")


def group_sizes(axes: Axes, shapes: Shapes) -> dict[str, int]:
    """How many units each group has; a group that stands beside others on one axis stands alone on another."""
    found: dict[str, tuple[int, str]] = {}
    beside: dict[str, str] = {}
    for k, row in axes.items():
        for a, n in zip(row, shapes[k], strict=True):
            if isinstance(a, tuple):
                beside |= {part.group: k for part in a if isinstance(part, Axis)}
            elif a is not None:
                units, where = found.setdefault(a.group, (a.units(n), k))
                if units != a.units(n):
                    raise ValueError(f"group {a.group} has {units} units in {where} and {a.units(n)} in {k}")
    if lost := beside.keys() - found.keys():
        group = min(lost)
        raise ValueError(f"{group} stands only beside others, as in {beside[group]}: its number of units is not known")
    return {group: n for group, (n, _) in found.items()}


def count_units(ratio: float, n: int) -> int:
    """``max(1, floor(ratio * n))``, the one rounding of the project, safe against 0.6 * 5 = 2.999."""
    return max(1, math.floor(ratio * n + 1e-9))


def chosen(laid: Iterable[tuple[Axis | None, int, int]], units: Mapping[str, Tensor]) -> Tensor | None:
    """The entries of the chosen units on an axis of such parts; None if it has none of these groups."""
    out, some = [], False
    for a, start, length in laid:
        if a is None or a.group not in units:
            out.append(torch.arange(start, start + length))
            continue
        some, own = True, a.entries(units[a.group], length)
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < length:  # they would be another part's
            raise ValueError(f"positions {int(own.min())}..{int(own.max())} do not fit an axis of {length}")
        out.append(start + own)
    return torch.cat(out) if some else None
