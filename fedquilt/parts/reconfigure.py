"""PruneFL's parts: one mask for all, found at one client and reconfigured by squared gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cover import Cover, Params, put, take
from ..fit import Fit, Fitted
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..step import mode
from ..term import Watch, call
from ..types import Brief, Client, Grant, Order, Part, Reply, Served, Serving, State, Work
from . import masks
from .local import Train, answer, measured, remember, section, sewn
from .merge import CoverMean, Weight
from .select import Uniform


@dataclass(frozen=True)
class Powers(Watch):
    """The sum over the steps of the gradient (``power`` 1) or of its square (2), of these tensors."""

    names: tuple[str, ...]
    power: int = 2

    def start(self, fit: Fit) -> Params:
        """Nothing yet."""
        return {k: torch.zeros_like(fit.start[k]) for k in self.names}

    def add(self, so_far: Params, seen: Params, grads: Params) -> Params:
        """One more step, dense: frozen and pruned coordinates too."""
        return {k: v + grads[k] ** self.power for k, v in so_far.items()}


def prunable(model: Model) -> tuple[str, ...]:
    """The weights that may be masked, the head's excepted."""
    return tuple(k for k in masks.prunable(model) if not k.startswith(model.head + "."))


@dataclass(frozen=True)
class Pruned(Part):
    """Trains with everything outside of the order's cover at zero, and tells squared gradients where it is asked to.

    ``sums``: the square of a round's summed gradient, as the authors' code has it; else the sum of squares.
    """

    train: Train = Train()
    sums: bool = False

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent, and the importance of every coordinate that may be pruned."""
        params = model.params()
        return Grant(cover, extras={f"importance/{k}": (params[k].dtype, model.shapes[k]) for k in prunable(model)})

    def start(self, order: Order, client: Client) -> Params:
        """What was sent, with zeros around it."""
        whole = sewn(order, client)
        names = prunable(client.model)
        empty = {k: torch.zeros_like(v) if k in names else v for k, v in whole.items()}
        inside = order.cover.only(lambda k: k in names)
        return put(empty, inside, take(whole, inside))

    def __call__(self, order: Order, client: Client) -> Work:
        """Train under the mask, adding up gradients."""
        m, names = client.model, prunable(client.model)
        start, watch = self.start(order, client), Powers(names, 1 if self.sums else 2)
        free = order.cover | m.whole.only(lambda k: k not in names)
        out: Fitted = yield self.train.fit(order, client, start, free=free, watch=(watch,))
        metrics = yield from measured(order, client, out)
        n, before = client.counts["train"], section(client.memory, "importance")
        told = {k: before.get(k, 0) + n * (v**2 if self.sums else v) for k, v in out.watched.items()}
        now = bool(order.scalars.get("report"))
        extra = {f"importance/{k}": v for k, v in told.items()} if now else {}
        kept = self.train.kept(order, client, out.params)
        return answer(order, client, out.params, metrics, extra=extra), remember(
            model=kept, importance={} if now else told
        )

    def serve(self, order: Order, client: Client) -> Serving:
        """The masked global model."""
        yield from ()
        return Served(client.model, self.start(order, client), order.norm)


@dataclass(frozen=True)
class CommonMask(Part):
    """What the mask of the part that merges leaves; before there is one, everything."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The unmasked coordinates."""
        note = state.notes.get("merge") or {}
        if not note.get("mask"):
            return model.whole
        return model.whole.only(lambda k: k not in note["mask"]) | Cover.masks(note["mask"])


@dataclass(frozen=True)
class AtOne(Part):
    """The strongest client alone for so many rounds; then ``n`` of all, each as likely."""

    initial: int = 10

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """Who trains."""
        if state.round >= self.initial:
            return Uniform()(state, fleet, n, key)
        return [max(sorted(fleet.devices), key=lambda i: (fleet.devices[i].width, fleet.devices[i].flops))]


@dataclass(frozen=True)
class Reconfigure(Part):
    r"""The mean by coordinates, under a mask that is chosen anew every so many rounds.

    .. math:: \max_M \Gamma(M) = \frac{\sum_{j \in M} G_j}{c + \sum_{j \in M} t_j}

    G are the squared gradients that clients have told, t the ``times`` of a weight of each tensor (none: all the
    same).  Of each layer, all but the ``rate`` smallest weights in use stay; the others and what is pruned compete: the
    greatest G / t come back while they raise Gamma, and while no more than ``density`` of all that may be pruned is
    in use.  Coordinates come back at zero.  c is ``constant`` times the time of all weights.
    """

    every: int = 50
    initial: int = 10
    early: int = 1
    rate: float = 0.3
    half: float = 10000.0
    density: float = 1.0
    constant: float = 0.5
    static: bool = False
    weight: Weight = "samples"
    timed: bool = False
    times: tuple[tuple[str, float], ...] = ()

    def due(self, round: int) -> bool:
        """Is the mask chosen after this round?"""
        if round < self.initial:
            return (round + 1) % self.early == 0
        return not self.static and (round + 1) % self.every == 0

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """Whether the squared gradients are wanted now."""
        return Brief({"report": True}) if self.due(state.round) else Brief()

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The mask of the next round."""
        note = note or {"mask": {}}
        told = [{k[11:]: v for k, v in r.extra.items() if k.startswith("importance/")} for r in replies]
        told = [t for t in told if t]
        if not told:
            return note
        gain = {k: torch.stack([t[k].double() for t in told]).sum(0) for k in told[0]}
        merged = CoverMean(self.weight)(state, replies)
        in_use = {k: note["mask"].get(k, torch.ones(v.shape, dtype=torch.bool)) for k, v in gain.items()}
        return {"mask": self.chosen({k: merged[k] for k in gain}, in_use, gain, state.round)}

    def chosen(self, params: Params, in_use: Params, gain: Params, round: int) -> Params:
        """The mask after these gains."""
        rate = self.rate * 0.5 ** (round / self.half)
        names = sorted(gain)
        kept = torch.cat([_strongest(params[k], in_use[k], rate) for k in names])
        g = torch.cat([gain[k].flatten() for k in names])
        most = max(1, int(self.density * len(g) + 1e-9))
        size = torch.cat([params[k].double().abs().flatten() for k in names])
        if int(kept.sum()) > most:
            order = torch.where(kept, size, -1.0).sort(descending=True, stable=True).indices
            kept = torch.zeros_like(kept).index_fill(0, order[:most], True)
        times = dict(self.times)
        t = torch.cat([torch.full((params[k].numel(),), times.get(k, 1.0), dtype=torch.float64) for k in names])
        kept = greedy(kept, g, t, self.constant * float(t.sum()), most)
        parts = kept.split([params[k].numel() for k in names])
        return {k: part.view(params[k].shape) for k, part in zip(names, parts, strict=True)}

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model, zero where it is pruned."""
        merged = dict(CoverMean(self.weight)(state, replies))
        mask: Mapping[str, Tensor] = state.notes["merge"]["mask"]
        return {k: torch.where(mask[k], v, torch.zeros_like(v)) if k in mask else v for k, v in merged.items()}


def _strongest(params: Tensor, in_use: Tensor, rate: float) -> Tensor:
    """Which of a layer's weights in use are not among the smallest ``rate`` of them."""
    used = int(in_use.sum())
    size = torch.where(in_use, params.double().abs(), -1.0).flatten()
    order = size.sort(descending=True, stable=True).indices[: used - int(rate * used + 1e-9)]
    return torch.zeros(params.numel(), dtype=torch.bool).index_fill(0, order, True)


def greedy(kept: Tensor, gain: Tensor, times: Tensor, constant: float, most: int) -> Tensor:
    """``kept`` and, by their gain over their time, those others that raise gain over (constant + time)."""
    room = min(int((~kept).sum()), most - int(kept.sum()))
    first = torch.where(kept, -1.0, gain / times).sort(descending=True, stable=True).indices[:room]
    none = gain.new_zeros(1)
    total = float(gain[kept].sum()) + torch.cat([none, gain[first].cumsum(0)])[:-1]
    spent = constant + float(times[kept].sum()) + torch.cat([none, times[first].cumsum(0)])[:-1]
    raises = gain[first] * spent > total * times[first]  # once one does not, no later one does
    return kept.index_fill(0, first[: int(raises.int().cumprod(0).sum())], True)


def times_of(model: Model, fleet: Fleet, x: Tensor, epochs: int) -> tuple[tuple[str, float], ...]:
    """The seconds of a round that one weight of each tensor takes, on average over a fleet's devices.

    A weight is used once at each place where its layer says something, and a training takes three times what the
    output does; it is received and sent as four bytes.  ``x`` are some samples, as the net takes them.
    """
    said: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[object, object, Any], None]:
        return lambda layer, args, out: said.__setitem__(name, out[0] if isinstance(out, tuple) else out)

    owners = {k: k.rpartition(".")[0] for k in prunable(model)}
    hooks = [model.net.get_submodule(m).register_forward_hook(keep(m)) for m in sorted({*owners.values()})]
    try:
        with torch.no_grad(), mode(model.net, train=False):
            call(model.net, {k: v.clone() for k, v in model.params().items()}, x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    pairs = [(d, fleet.sizes.get(i, 1)) for i, d in fleet.devices.items()]
    work = sum(epochs * n / d.flops for d, n in pairs) / len(pairs)
    way = sum(4 / d.down + 4 / d.up for d, _ in pairs) / len(pairs)

    def places(name: str) -> float:
        out = said.get(owners[name])
        return 1.0 if out is None else out.numel() / out.shape[1 if len(model.shapes[name]) > 2 else -1]

    return tuple((k, 3 * 2 * places(k) * work + way) for k in owners)


WATCHES: Mapping[str, type[Watch]] = {w.__name__: w for w in (Powers,)}
