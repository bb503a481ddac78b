"""A net's axes table: proposed by a trace, then cut down to the groups that keep both laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..cover import Axes
from ..model import Model, model
from .check import KEY, broken
from .classes import FIXED
from .table import rows_of, table_of
from .values import Trace
from .walk import Untraceable, walk


@dataclass(frozen=True, eq=False)
class Found:
    """What a trace found: a model with a table that keeps both laws, and in words what stays whole and why."""

    model: Model
    whole: Mapping[str, str]  # by group, or by tensor

    @property
    def axes(self) -> Axes:
        """The table."""
        return self.model.axes


def axes_of(net: nn.Module, x: Tensor) -> Found:
    """Follow the net on a batch and find its axes table."""
    t = walk(net, x)
    head = head_of(t)
    left: dict[str, str] = {}
    while True:
        table, left = table_of(t, left)
        found = model(net, table, head)
        faults = broken(found, x)
        if not faults:
            return Found(found, {**left, **unplaced(t, table)})
        left |= {group: why + baked_in(t, found, group) for group, why in faults.items()}


def baked_in(t: Trace, m: Model, group: str) -> str:
    """The lines that bring a group's units into a shape: one of them may say sizes that are the whole net's."""
    place = next(p for p in m.places if p.axis.group == group)
    units = t.classes.of(t.rows[place.name][place.dim][place.entries(torch.arange(place.units))]).unique()
    lines = [
        str(where) for labels, where in t.sized if where.file and bool(torch.isin(t.classes.of(labels), units).any())
    ]
    if not lines:
        return ""
    return "; does one of these lines say sizes of the whole net? " + "; ".join(dict.fromkeys(lines))


def head_of(t: Trace) -> str:
    """The layer that makes the outputs: the last whose own rows nobody may move, because they come out."""
    used = [name for name in t.order if "." in name]
    made = [name for name in used if not bool(t.classes.of(t.rows[name][name in t.turned]).any())]
    if not used:
        raise Untraceable("the net has no layer with weights")
    return (made or used)[-1].rpartition(".")[0]


def unplaced(t: Trace, table: Axes) -> dict[str, str]:
    """The tensors of which the trace left an axis whole for a reason that a person may want to know."""
    said: dict[str, str] = {}
    known: set[int] = set()
    for (name, d), row in rows_of(t).items():
        along = table.get(name, (None,) * len(t.shapes[name]))[d]
        if along is not None or len(row) < 2 or d > 1 or len({*row}) > 1 or row[0] in known:
            continue
        known |= {row[0]} - {FIXED}
        told = t.classes.told(t.rows[name][d], row[0] == FIXED)
        if told:
            said.setdefault(str(told[0]), name)
    return {name: why for why, name in said.items()}


def batch(shape: tuple[int, ...], dtype: torch.dtype, net: nn.Module) -> Tensor:
    """Two samples of this shape: numbers at random, or the first words of the smallest table that is looked up."""
    g = KEY.torch()
    if dtype.is_floating_point:
        return torch.randn(2, *shape, dtype=dtype, generator=g)
    sizes = [m.num_embeddings for m in net.modules() if isinstance(m, nn.Embedding)]
    return torch.randint(min(sizes, default=2), (2, *shape), generator=g).to(dtype)
