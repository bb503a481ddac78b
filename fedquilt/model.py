"""A model is an ordinary net plus a table that names what each axis of each tensor is made of.

No net has a width argument: shapes come from the tensors, so the piece of a net runs as it is.
A wrong table is caught by one law: permuting the units of a group must not change the function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from .cover import Axes, Axis, Cover, Params, Shapes, count_units, take
from .key import Key

__all__ = ["Axis", "Model", "model"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, eq=False)
class Model:
    """``net`` and its axes table.

    ``head`` names the layer that makes the outputs, ``stages`` the modules whose outputs are the
    net's depth (attention and distillation terms look at them), ``spec`` what builds it again.
    """

    net: nn.Module
    axes: Axes
    head: str = "head"
    stages: tuple[str, ...] = ()
    spec: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes = self.shapes
        for k, table in self.axes.items():
            if k not in shapes:
                raise ValueError(f"the axes table names {k}, which the net does not have")
            if len(table) != len(shapes[k]):
                raise ValueError(f"{k} has {len(shapes[k])} axes, its table row has {len(table)}")
        sizes: dict[str, tuple[int, str]] = {}
        for k, table in self.axes.items():
            for a, n in zip(table, shapes[k], strict=True):
                if a is None:
                    continue
                units, where = sizes.setdefault(a.group, (a.units(n), k))
                if units != a.units(n):
                    raise ValueError(f"group {a.group} has {units} units in {where} and {a.units(n)} in {k}")

    @property
    def name(self) -> str:
        """What its builder is called."""
        return str(self.spec.get("name", "custom"))

    @cached_property
    def shapes(self) -> Shapes:
        """The full shape of every tensor, buffers included, in the order of their names."""
        return {k: tuple(v.shape) for k, v in sorted(self.net.state_dict().items())}

    @cached_property
    def trainable(self) -> frozenset[str]:
        """The names that a gradient may move."""
        return frozenset(k for k, v in self.net.named_parameters() if v.requires_grad)

    @cached_property
    def statistics(self) -> frozenset[str]:
        """The names of the normalisation layers' running statistics."""
        return frozenset(k for k in self.shapes if k.rpartition(".")[2] in STATISTICS)

    @cached_property
    def groups(self) -> dict[str, int]:
        """How many units each group has."""
        return {a.group: a.units(n) for k, t in self.axes.items() for a, n in zip(t, self.shapes[k], strict=True) if a}

    @cached_property
    def _initial(self) -> Params:
        return {k: v.detach().clone() for k, v in sorted(self.net.state_dict().items())}

    def params(self) -> Params:
        """The net's tensors as they were built (shared, never to be changed in place)."""
        return dict(self._initial)

    def count(self, cover: Cover | None = None) -> int:
        """How many trainable parameters the net, or its piece, has."""
        whole = self.whole if cover is None else cover
        return sum(whole[k].numel for k in self.trainable if k in whole)

    @cached_property
    def whole(self) -> Cover:
        """Everything."""
        return Cover.whole(self.shapes)

    def cover(self, units: Mapping[str, Tensor]) -> Cover:
        """The sub-model that keeps these units of each group; axes of no group stay whole."""
        unknown = units.keys() - self.groups.keys()
        if unknown:
            raise ValueError(f"no group is called {sorted(unknown)}; the groups are {sorted(self.groups)}")
        return Cover.units(self.shapes, self.axes, units)

    def prefix(self, ratio: float) -> Cover:
        """The first ``max(1, floor(ratio n))`` units of every group."""
        return self.cover({g: torch.arange(count_units(ratio, n)) for g, n in self.groups.items()})

    def units(self, cover: Cover) -> dict[str, Tensor]:
        """The units of each group that a cover made by :meth:`cover` keeps."""
        out: dict[str, Tensor] = {}
        for k, table in self.axes.items():
            if k not in cover:
                continue
            for d, a in enumerate(table):
                if a is None or a.group in out:
                    continue
                s = cover[k]
                if s.mask is not None:
                    raise ValueError(f"{k} is covered by a mask of coordinates, not by units")
                kept = None if s.axes is None else s.axes[d]
                n = self.groups[a.group]
                out[a.group] = torch.arange(n) if kept is None else (kept // a.block % n).unique()
        return out

    def complete(self, cover: Cover) -> Cover:
        """The whole sub-model of which ``cover`` speaks about some tensors (groups unseen stay whole)."""
        return self.cover(self.units(cover))

    def scaled(self, widths: Mapping[str, int], key: Key) -> Params:
        """Random units of each group, as many as asked for: an initial slimmer net."""
        units = {g: key.at(g).permutation(n)[: widths[g]].sort().values for g, n in self.groups.items()}
        return take(self.params(), self.cover(units))


def model(net: nn.Module, axes: Axes, head: str = "head", stages: tuple[str, ...] = ()) -> Model:
    """A user's own net with its axes table (see docs/models.md)."""
    return Model(net, axes, head, stages)
