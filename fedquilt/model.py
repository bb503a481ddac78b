"""A model is an ordinary net plus a table that names what each axis of each tensor is made of.

No net has a width argument: shapes come from the tensors, so the piece of a net runs as it is.
A wrong table is caught by one law: permuting the units of a group must not change the function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .cover import Axes, Axis, Cover, Params, Place, Shapes, count_units, group_sizes, places, take
from .key import Key
from .supple import supple

__all__ = ["Axis", "Model", "model"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, eq=False)
class Model:
    """``net`` and its axes table.

    ``head`` names the layer that makes the outputs, ``stages`` the modules whose outputs are the
    net's depth (attention and distillation terms look at them), ``spec`` what builds it again.
    ``exits`` names the small heads of all stages but the last, where the net has them.
    """

    net: nn.Module
    axes: Axes
    head: str = "head"
    stages: tuple[str, ...] = ()
    spec: Mapping[str, object] = field(default_factory=dict)
    exits: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shapes = self.shapes
        for k, table in self.axes.items():
            if k not in shapes:
                same = self.net.state_dict(keep_vars=True).get(k)
                for name, t in tensors(self.net).items():
                    if t is same:
                        raise ValueError(f"the axes table names {k}, which is another name of {name}: name that one")
                raise ValueError(f"the axes table names {k}, which the net does not have")
            if len(table) != len(shapes[k]):
                raise ValueError(f"{k} has {len(shapes[k])} axes, its table row has {len(table)}")
        _ = self.places  # finding them checks that all sizes fit

    @property
    def name(self) -> str:
        """What its builder is called."""
        return str(self.spec.get("name", "custom"))

    @cached_property
    def shapes(self) -> Shapes:
        """The full shape of every tensor, buffers included, in the order of their names."""
        return {k: tuple(v.shape) for k, v in sorted(tensors(self.net).items())}

    @cached_property
    def trainable(self) -> frozenset[str]:
        """The names that a gradient may move."""
        return frozenset(k for k, v in self.net.named_parameters() if v.requires_grad)

    @cached_property
    def statistics(self) -> frozenset[str]:
        """The names of the normalisation layers' running statistics."""
        return frozenset(k for k in self.shapes if k.rpartition(".")[2] in STATISTICS)

    @cached_property
    def normalising(self) -> frozenset[str]:
        """The names of all tensors of normalisation layers, ours and torch's."""
        layers = [name for name, m in self.net.named_modules() if "Norm" in type(m).__name__]
        return frozenset(k for k in self.shapes if k.rpartition(".")[0] in layers)

    @cached_property
    def groups(self) -> dict[str, int]:
        """How many units each group has."""
        return group_sizes(self.axes, self.shapes)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where the units of all groups stand, in the order of the table."""
        return tuple(places(self.axes, self.shapes))

    @cached_property
    def _initial(self) -> Params:
        return {k: v.detach().clone() for k, v in sorted(tensors(self.net).items())}

    def params(self) -> Params:
        """The net's tensors as they were built (shared, never to be changed in place)."""
        return dict(self._initial)

    def count(self, cover: Cover | None = None) -> int:
        """How many trainable parameters the net, or its piece, has."""
        whole = self.whole if cover is None else cover
        return sum(whole[k].numel for k in self.trainable if k in whole)

    @property
    def features(self) -> tuple[str, ...]:
        """The modules whose outputs a term may look at: the stages, and the exits where there are any."""
        return (*self.stages, *self.exits)

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
        for place in self.places:
            a = place.axis
            if place.name not in cover or a.group in out:
                continue
            s = cover[place.name]
            if s.mask is not None:
                raise ValueError(f"{place.name} is covered by a mask of coordinates, not by units")
            kept = None if s.axes is None else s.axes[place.dim]
            n = self.groups[a.group]
            if kept is None:
                out[a.group] = torch.arange(n)
            else:
                own = kept[(kept >= place.start) & (kept < place.start + place.length)] - place.start
                out[a.group] = (own // a.block % n).unique()
        return out

    def complete(self, cover: Cover) -> Cover:
        """The whole sub-model of which ``cover`` speaks about some tensors (groups unseen stay whole)."""
        return self.cover(self.units(cover))

    def scaled(self, widths: Mapping[str, int], key: Key) -> Params:
        """Random units of each group, as many as asked for: an initial slimmer net."""
        units = {g: key.at(g).permutation(n)[: widths[g]].sort().values for g, n in self.groups.items()}
        return take(self.params(), self.cover(units))

    # ---- depth
    def depth(self, k: int, head: bool = False) -> Cover:
        """The stem and the first ``k`` stages, with their exits; with ``head`` also what follows the last stage.

        What comes before what is the order in which the net registers its modules.
        """
        if not self.stages:
            raise ValueError(f"{self.name} names no stages, so it has no depth")
        if not 0 <= k <= len(self.stages):
            raise ValueError(f"{self.name} has {len(self.stages)} stages: there is no depth {k}")
        place = {name: i for i, (name, _) in enumerate(self.net.named_modules(remove_duplicate=False))}

        def end(stage: str) -> int:
            return max(i for name, i in place.items() if name == stage or name.startswith(stage + "."))

        first, last = end(self.stages[k - 1]) if k else place[self.stages[0]] - 1, end(self.stages[-1])

        def inside(name: str) -> bool:
            owner = name.rpartition(".")[0]
            if owner in self.exits:
                return self.exits.index(owner) < k
            return place[owner] <= first or (head and place[owner] > last)

        return self.whole.only(inside)

    def upto(self, k: int) -> Model:
        """The net of the first ``k`` stages, with exit ``k`` as its head: what follows is neither there nor run.

        Its tensors have the names that they have in the whole net, so ``m.upto(k).whole`` is a cover of ``m``.
        The net itself must know how: a net with exits has a method ``upto(stage)`` (see ``models.Staged``).
        """
        if k == len(self.stages):
            return self
        if not 1 <= k < len(self.stages):
            raise ValueError(f"{self.name} has {len(self.stages)} stages: there is no net of the first {k}")
        if not self.exits:
            raise ValueError(f"{self.name} has no exits, so a part of its stages has no head: build it with exits=True")
        if k not in self._shallow:
            net: Any = self.net
            cut = net.upto(self.stages[k - 1])
            axes = {name: self.axes[name] for name in tensors(cut) if name in self.axes}
            spec = {**self.spec, "depth": k} if self.spec else {}
            self._shallow[k] = Model(cut, axes, self.exits[k - 1], self.stages[:k], spec, self.exits[: k - 1])
        return self._shallow[k]

    @cached_property
    def ensemble(self) -> Model:
        """The same tensors in a net that says the mean of what its head and its exits say; without exits, itself."""
        net: Any = self.net
        return replace(self, net=net.ensemble(), spec={}) if hasattr(net, "ensemble") else self

    @cached_property
    def _shallow(self) -> dict[int, Model]:
        return {}  # made once each: engines put the work of clients with the same model together

    # ---- width
    def sized(self, units: Mapping[str, int], key: Key) -> Model:
        """The same net with so many units in these groups; layers whose tensors change are drawn afresh."""
        unknown = units.keys() - self.groups.keys()
        if unknown:
            raise ValueError(f"no group is called {sorted(unknown)}; the groups are {sorted(self.groups)}")
        if min(units.values(), default=1) < 1:
            raise ValueError(f"a group has one unit at least: {dict(units)}")
        shapes = {k: list(s) for k, s in self.shapes.items()}
        for p in self.places:
            n = p.units
            shapes[p.name][p.dim] += (units.get(p.axis.group, n) - n) * p.axis.block * p.axis.repeat
        net = deepcopy(self.net)
        with drawing(key):
            reshape(net, {k: tuple(s) for k, s in shapes.items()})
        old: Any = self.spec.get("units", {})
        return replace(self, net=net, spec={**self.spec, "units": {**old, **units}} if self.spec else {})


@contextmanager
def drawing(key: Key) -> Iterator[None]:
    """Torch's layers draw their initial values from ``key`` inside, and its global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would seed the accelerators' generators too
        torch.default_generator.manual_seed(key.number())
        yield


def tensors(net: nn.Module) -> Params:
    """The net's own tensors, buffers included; one that layers share has the first of its names alone."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, t in net.state_dict(keep_vars=True).items():
        if isinstance(t, Tensor):
            found.setdefault(id(t), (name, t))
    return dict(found.values())


def reshape(net: nn.Module, shapes: Shapes) -> None:
    """Give the net's tensors these shapes, in place; a layer with a tensor of another shape draws all of its own."""
    before = tensors(net)
    asked = {id(t): shapes.get(name, tuple(t.shape)) for name, t in before.items()}
    fresh: dict[int, Tensor] = {}  # tensors that layers share stay shared
    for prefix, layer in net.named_modules():
        own = dict([*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)])
        wanted = {k: asked.get(id(t), tuple(t.shape)) for k, t in own.items()}
        changed = [k for k, t in own.items() if tuple(t.shape) != wanted[k]]
        if not changed:
            continue
        if not hasattr(layer, "reset_parameters"):
            raise ValueError(
                f"{prefix or 'the net'} ({type(layer).__name__}) has no reset_parameters() to draw other sizes with"
            )
        for k in changed:
            new = own[k].detach().new_empty(wanted[k])
            kept = nn.Parameter(new, own[k].requires_grad) if isinstance(own[k], nn.Parameter) else new
            setattr(layer, k, fresh.setdefault(id(own[k]), kept))
        restate(layer)
        layer.reset_parameters()


def restate(layer: nn.Module) -> None:
    """What a stock layer says of its own sizes; it does not use them."""
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        layer.out_channels, layer.in_channels = layer.weight.shape[0], layer.weight.shape[1] * layer.groups
    elif isinstance(layer, nn.Embedding):
        layer.embedding_dim = layer.weight.shape[1]


def adopt(net: nn.Module, name: str, tensor: Tensor) -> None:
    """Make a tensor the net's own under this name, whatever its shape."""
    owner, _, leaf = name.rpartition(".")
    layer = net.get_submodule(owner)
    old = getattr(layer, leaf)
    setattr(layer, leaf, nn.Parameter(tensor, old.requires_grad) if isinstance(old, nn.Parameter) else tensor)
    if isinstance(getattr(layer, "weight", None), Tensor) and leaf == "weight":
        restate(layer)


def model(
    net: nn.Module, axes: Axes, head: str = "head", stages: tuple[str, ...] = (), exits: tuple[str, ...] = ()
) -> Model:
    """A user's own net with its axes table (see docs/models.md); torch's layers in it learn to run in pieces."""
    known = [name for name, _ in net.named_modules() if name]
    if wrong := [name for name in (head, *stages, *exits) if name not in known]:
        what = "that makes the outputs: say head=..." if wrong[0] == head else "to be a stage or an exit: each is"
        raise ValueError(f"the net has no layer {wrong[0]!r} {what}, one of {', '.join(known)}")
    if exits and len(exits) != len(stages) - 1:
        raise ValueError(f"each stage but the last has an exit: {len(exits)} do not fit {len(stages)} stages")
    return Model(supple(net), axes, head, stages, exits=exits)
