"""Partial work: as much of it as the server says, by a client's time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cover import Cover, count_units, put, take
from ..fit import Fitted
from ..fleet import Fleet
from ..model import Model
from ..types import Brief, Client, Grant, Order, Part, Reply, Serving, State, Work
from .local import Train, answer, measured, received, remember
from .select import Uniform
from .timing import nbytes, spent


def layers(model: Model) -> list[str]:
    """The modules with something to train, from input to output (as the net registers them), without early exits."""
    names = (k.rpartition(".")[0] for k, p in model.net.named_parameters() if p.requires_grad)
    return [name for name in dict.fromkeys(names) if name not in model.exits]


def outer(model: Model, share: float) -> frozenset[str]:
    """The tensors, statistics included, of that share of the layers that is next to the output."""
    chosen = layers(model)
    kept = set(chosen[len(chosen) - count_units(share, len(chosen)) :])
    return frozenset(k for k in model.shapes if k.rpartition(".")[0] in kept)


@dataclass(frozen=True)
class Portion(Part):
    """The training of ``train``, as much of it as the order says.

    ``times``: so many times as long.  ``share``: only that part of the layers, next to the output, is trained and
    sent; the others are frozen, statistics too under ``norm="frozen"``.  ``drop``: each tensor stays behind with this
    probability.
    """

    train: Train = Train()

    def grant(self, cover: Cover, model: Model) -> Grant:
        """A reply speaks about some of the tensors that were sent."""
        return Grant(cover, frozenset({"same", "mask"}))

    def __call__(self, order: Order, client: Client) -> Work:
        """Train a part, send a part."""
        whole, sub = received(order, client)
        times, share, drop = (float(order.scalars.get(k, d)) for k, d in (("times", 1.0), ("share", 1.0), ("drop", 0)))
        mine = outer(client.model, share)
        more: dict[str, Any] = {} if share >= 1 else {"free": sub.only(mine.__contains__)}
        if times != 1:
            base = self.train.fit(order, client, take(whole, sub))
            more["steps"] = max(1, math.floor(times * base.length(client.counts["train"])[1] + 1e-9))
        out: Fitted = yield self.train.fit(order, client, take(whole, sub), **more)
        metrics = yield from measured(order, client, out)
        whole = put(whole, sub, out.params)
        key = client.key.at("drop")
        cover = order.cover.only(lambda k: (share >= 1 or k.partition("@")[0] in mine) and key.at(k).uniform() >= drop)
        return answer(order, client, whole, metrics, cover), remember(model=self.train.kept(order, client, whole))

    def serve(self, order: Order, client: Client) -> Serving:
        """As the plain training has it."""
        return (yield from self.train.serve(order, client))


@dataclass(frozen=True)
class Timely(Uniform):
    r"""TimelyFL's workloads: a cohort is given as much to do as each can within the time of its k-th fastest.

    .. math:: T = \text{k-th smallest of } t^{cmp}_i + t^{com}_i, \qquad
        E_i = \max(\lfloor (T - t^{com}_i) / t^{cmp}_i \rfloor, 1), \qquad
        \alpha_i = \min(T / (t^{cmp}_i + t^{com}_i), 1)

    k is the share ``kth`` of the cohort, E at most ``most``.  The times are those of the client's last work on the
    whole net; one that has done none is expected to need as many operations a sample as the others.
    """

    kth: float = 0.5
    most: int = 10

    def __post_init__(self) -> None:
        if not (0 < self.kth <= 1 and self.most >= 1):
            raise ValueError(f"kth is a share above 0, most 1 or more: not {self.kth} and {self.most}")

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Each client's seconds of a unit of work and on the way, and the operations a sample that this means."""
        note = note or {"clients": {}, "work": 0.0, "bytes": 0}
        clients, work = dict(note["clients"]), note["work"]
        full = [r for r in replies if r.order is not None and r.order.scalars.get("share", 1.0) == 1.0]
        for r in full:
            assert r.order is not None
            device = fleet.devices[r.client]
            compute, radio = spent(r, device)
            unit = compute / float(r.order.scalars.get("times", 1.0))
            clients[r.client] = {"unit": unit, "radio": radio}
            work = unit * device.flops / r.weight
        return {"clients": clients, "work": work, "bytes": nbytes(dict(state.params))}

    def together(self, state: State, cohort: Fleet) -> Mapping[int, Brief]:
        """Each one's number of units, and share of the layers."""
        note = state.notes.get("select")
        if not note or not note["clients"]:
            return {}
        times = {i: self._times(note, cohort, i) for i in sorted(cohort.devices)}
        ends = sorted(unit + radio for unit, radio in times.values())
        end = ends[max(1, math.ceil(self.kth * len(ends) - 1e-9)) - 1]
        out = {}
        for i, (unit, radio) in times.items():
            units = max(1, min(self.most, math.floor((end - radio) / unit + 1e-9))) if unit > 0 else 1
            out[i] = Brief({"times": float(units), "share": min(end / (unit + radio), 1.0) if unit + radio else 1.0})
        return out

    def _times(self, note: Mapping[str, Any], cohort: Fleet, client: int) -> tuple[float, float]:
        if client in note["clients"]:
            return note["clients"][client]["unit"], note["clients"][client]["radio"]
        device = cohort.devices[client]
        work = note["work"] * cohort.sizes.get(client, 1) / device.flops
        return work, note["bytes"] * (1 / device.down + 1 / device.up)
