"""What a trace follows: tensors of a net with a label for each of their entries, and weights with one an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from .classes import FIXED, Classes, Reason, Where, thin


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor as it was computed, and whose unit each of its entries belongs to (0: nobody's)."""

    data: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor of the net of two axes or more, or a view of it: ``ids`` says which entry stands where."""

    name: str
    data: Tensor
    ids: Tensor


def varies(t: Tensor, d: int) -> bool:
    """Do the entries differ along this axis?"""
    t = thin(t)
    return t.shape[d] > 1 and bool((t != t.narrow(d, 0, 1)).any())


def first(t: Tensor, dims: Sequence[int]) -> Tensor:
    """The first entry along these axes, which stay, of length one."""
    for d in dims:
        t = t.narrow(d, 0, 1)
    return t


@dataclass(eq=False)
class Trace:
    """All that is known of a net's tensors while its operations are followed, one by one."""

    shapes: Mapping[str, tuple[int, ...]]
    classes: Classes = field(default_factory=Classes)
    rows: dict[str, list[Tensor]] = field(default_factory=dict)  # the labels of each axis of each tensor
    entries: dict[str, Tensor] = field(default_factory=dict)  # those of each entry, where axes do not suffice
    used: dict[str, Tensor] = field(default_factory=dict)  # and which of them the net used
    placed: set[tuple[str, int]] = field(default_factory=set)  # the axes that an operation spoke about
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # each result's labels, and how often
    base: dict[str, Tensor] = field(default_factory=dict)  # the entries of each weight as they stand in it
    sized: list[tuple[Tensor, Where]] = field(default_factory=list)  # what was brought into shapes, and where
    order: list[str] = field(default_factory=list)  # the weights in the order in which the net used them
    turned: set[str] = field(default_factory=set)  # those whose second axis makes what comes out
    where: Where = field(default_factory=lambda: Where(""))

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            self.rows[name] = [self.classes.fresh(n) for n in shape]

    def why(self, said: str, plain: bool = False) -> Reason:
        """A reason that lies in the operation at hand."""
        return Reason(said, self.where, plain)

    # ---- weights
    def axes(self, w: Weight, *used: int) -> list[Tensor] | None:
        """The labels of each axis of a weight, of which these are used; None if it is not made of whole axes."""
        self.order.append(w.name)
        shape, ids, found = self.shapes[w.name], w.ids, [torch.zeros(n, dtype=torch.int64) for n in w.ids.shape]
        taken: set[int] = set()
        if ids is self.base.get(w.name):
            self.placed |= {(w.name, d) for d in used if shape[d] > 1}
            return [row if len(row) > 1 else torch.zeros_like(row) for row in self.rows[w.name]]
        for d, n in enumerate(shape):
            at = ids // prod(shape[d + 1 :]) % n
            along = [j for j in range(ids.dim()) if varies(at, j)]
            if len(along) > 1 or taken & {*along}:
                return None
            if along:
                [j] = along
                taken.add(j)
                found[j] = self.rows[w.name][d][first(at, [k for k in range(at.dim()) if k != j]).flatten()]
                if j in used:
                    self.placed.add((w.name, d))
        return found

    def spread(self, w: Weight | Value) -> Value:
        """The same with a label for each entry."""
        if isinstance(w, Value):
            return w
        if w.name not in self.entries:
            self.entries[w.name] = self.classes.fresh(prod(self.shapes[w.name]))
            self.used[w.name] = torch.zeros(prod(self.shapes[w.name]), dtype=torch.bool)
            self.order += [w.name] if self.shapes[w.name][0] > 1 else []
        self.used[w.name][w.ids] = True
        return Value(w.data, self.entries[w.name][w.ids])

    def fold(self) -> None:
        """Find for each tensor with labelled entries the one axis that they speak of; fix what nothing speaks of."""
        for name, labels in self.entries.items():
            shape, used = self.shapes[name], self.used[name]
            found = self.classes.of(labels)
            why = Reason(f"the entries of {name} are used in a way that no axis of it speaks for", Where("", name))
            if not bool(found[used].any()):  # nobody may move them: there is a reason already
                why = next(iter(self.classes.told(labels[used], True)), why)
            best: tuple[int, Tensor, Tensor] | None = None
            for d, n in enumerate(shape):
                mine, seen = (v.view(shape).movedim(d, 0).reshape(n, -1) for v in (found, used))
                low, high = mine.masked_fill(~seen, len(self.classes.flat)).amin(1), mine.masked_fill(~seen, -1).amax(1)
                some = seen.any(1)
                if bool((low == high)[some].all()) and (best is None or n > shape[best[0]]):
                    best = d, high, some
            if best is None:
                self.classes.fix(found, why)
                continue
            d, units, some = best
            row = self.rows[name][d]
            self.classes.unite(row[some], units[some], why)
            self.classes.fix(row[~some], why)
            self.placed.add((name, d))
        for name, rows in self.rows.items():
            for d, labels in enumerate(rows):
                if (name, d) not in self.placed:
                    self.classes.fix(labels, Reason("no operation reads it by units", Where("", name), True))

    # ---- what operations owe
    def columns(self, x: Value, dim: int, labels: Tensor, said: str = "reads several units with one weight") -> None:
        """What comes in along an axis is made of the units that these labels name, at every position."""
        units = self.classes.of(x.labels).movedim(dim, -1).reshape(-1, x.data.shape[dim])
        if bool((units == units[:1]).all()):
            units = units[:1]
        fixed = (units == FIXED).any(0)
        bound = varies(x.data, dim) or x.data.shape[dim] == 1 or not bool(fixed.all())
        if bound:  # else it is the same everywhere, such as a first state of zeros
            self.classes.fix(labels[fixed], self.why("what comes in is nobody's to move", True))
            self.classes.unite(units[:, ~fixed], labels[~fixed], self.why(said))

    def settle(self, labels: Tensor, dims: Sequence[int], said: str) -> Tensor:
        """Whose units what is summed over these axes is, the axes kept at length one."""
        units = self.classes.of(labels)
        one = first(units, dims)
        if bool((units == one).all()):
            return one
        rest = [d for d in range(units.dim()) if d not in dims]
        if bool((units == first(units, rest)).all()):
            return torch.zeros_like(one)  # the order of what is summed does not matter
        self.classes.unite(one, units, self.why(said))
        return self.classes.of(one)

    def together(self, a: Value, b: Value) -> Value:
        """Entries that meet one by one belong to the same unit."""
        shape = torch.broadcast_shapes(a.data.shape, b.data.shape)
        for x, y in ((a, b), (b, a)):
            self._broadcast(x, y, shape)
        p, q = self._met(a, b, shape)
        both = (p != FIXED) & (q != FIXED)
        if bool(both.any()):
            self.classes.unite(p[both], q[both], self.why("joins units that meet there"))
            p, q = self._met(a, b, shape)
        data = a.data.to(torch.float64) + b.data.to(torch.float64) * 0.7  # what matters is where it differs
        return Value(data, torch.where(p != FIXED, p, q).expand(shape))

    def _met(self, a: Value, b: Value, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """The classes of two that meet, without the axes along which neither differs."""
        p, q = (self.classes.of(v.labels).expand(shape) for v in (a, b))
        return thin(p, q), thin(q, p)

    def _broadcast(self, x: Value, y: Value, shape: torch.Size) -> None:
        """Fix the units of ``x`` that meet entries of ``y`` which differ, and those that ``x`` has once for many."""
        units, others = (self.classes.of(v.labels).expand(shape) for v in (x, y))
        data = y.data.expand(shape)
        lone = (units != FIXED) & (others == FIXED)
        if bool(lone.any()) and any(varies(units, d) and varies(data, d) for d in range(len(shape))):
            self.classes.fix(units[lone], self.why("meets entries that no unit can move"))
        once = (1,) * (len(shape) - x.data.dim()) + tuple(x.data.shape)
        many = any(n == 1 < shape[d] and varies(others, d) for d, n in enumerate(once))
        if many and not any(varies(units, d) and varies(others, d) for d in range(len(shape))):
            self.classes.fix(x.labels, self.why("is one entry for many units", True))

    def saw(self, labels: Tensor) -> None:
        """Keep how often each label stands in a result: units of one group stand everywhere equally often."""
        times = 1
        for d in range(labels.dim()):
            if labels.stride(d) == 0 and labels.shape[d] > 1:
                times *= labels.shape[d]
                labels = labels.narrow(d, 0, 1)
        found, n = labels.unique(return_counts=True)
        self.seen.append((found, n * times))
