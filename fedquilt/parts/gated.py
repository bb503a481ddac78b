"""Hermes's parts: sub-models that shrink while they are good enough, and a mean over what all have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..cover import Cover, Params, mean, put, take
from ..fit import Evaluate, Fitted, Scored, Term
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..term import Step
from ..types import Client, Grant, Order, Part, Reply, Served, Serving, State, Work
from .importance import granted, heard, told, unit_scores
from .local import Train, answer, measured, remember, score_of, section, sewn, spoken
from .merge import Weight, weight_of


@dataclass(frozen=True)
class GroupLasso(Term):
    r"""A pull of whole structures to zero: rows (filters) and columns (channels) that are units of a group.

    .. math:: \lambda \sum_g \lVert \theta_g \rVert_2, \qquad \nabla = \lambda \theta_g / \lVert \theta_g \rVert_2

    and nothing where a structure is zero.  ``along`` says which axes of which tensors are made of units.
    """

    along: tuple[tuple[str, int], ...]
    lam: float = 1e-3

    @staticmethod
    def of(model: Model, lam: float) -> GroupLasso:
        """That of all weights of a model."""
        places = [p for p in model.places if p.name in model.trainable and len(model.shapes[p.name]) > 1]
        return GroupLasso(tuple(sorted({(p.name, p.dim) for p in places})), lam)

    def __call__(self, s: Step) -> Tensor:
        """Lambda times the sum of the lengths."""
        total = torch.zeros((), dtype=next(iter(s.params.values())).dtype)
        for name, dim in self.along:
            square = s.params[name].pow(2).movedim(dim, 0).flatten(1).sum(1)
            there = square > 0
            total = total + torch.where(there, torch.where(there, square, 1.0).sqrt(), 0.0).sum()
        return self.lam * total


@dataclass(frozen=True)
class Gated(Part):
    """Trains its own sub-model; where that is better than ``threshold`` on validation data, drops its weakest units.

    A ``step`` of each group's units, those of least l2 norm, while more than ``target`` of the parameters remains.
    What it receives is sewn into its own model; what it answers with is its sub-model.
    """

    train: Train = Train()
    lam: float = 1e-3
    threshold: float = 0.5
    target: float = 0.5
    step: float = 0.1

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Any of the units, whatever was sent, and which these are."""
        return Grant(model.whole, frozenset({"same", "whole", "block"}), granted(model))

    def _own(self, client: Client) -> Cover:
        return client.model.cover(section(client.memory, "kept"))

    def _pruned(self, model: Model, whole: Params, sub: Cover) -> Cover:
        """Without the weakest units of each group."""
        scores, kept = unit_scores(model, whole, "l2"), {}
        for g, units in model.units(sub).items():
            fewer = max(1, len(units) - max(1, int(self.step * len(units) + 1e-9)))
            kept[g] = units[scores[g][units].sort(descending=True, stable=True).indices[:fewer]].sort().values
        return model.cover(kept)

    def __call__(self, order: Order, client: Client) -> Work:
        """Train; look whether it is good enough to be made smaller."""
        m, whole, sub = client.model, sewn(order, client), self._own(client)
        terms = (*self.train.terms, GroupLasso.of(m, self.lam)) if self.lam else self.train.terms
        out: Fitted = yield self.train.fit(order, client, take(whole, sub), terms=terms)
        metrics = yield from measured(order, client, out)
        seen: Scored = yield Evaluate(m, client.task, out.params, client.val, order.norm)
        whole = put(whole, sub, out.params)
        large = m.count(sub) > self.target * m.count()
        if seen.metrics and score_of(seen, "accuracy") > self.threshold and large:
            sub = self._pruned(m, whole, sub)
        units = m.units(sub)
        reply = answer(order, client, whole, metrics, spoken(order, m, sub), told(m, units))
        return reply, remember(model=whole, kept=units)

    def serve(self, order: Order, client: Client) -> Serving:
        """Its own sub-model."""
        whole = section(client.memory, "model") or sewn(order, client)
        if order.norm == "post-hoc":
            return (yield from replace(self.train, keep="whole").serve(order, client))
        yield from ()
        return Served(client.model, take(whole, self._own(client)), order.norm)


@dataclass(frozen=True)
class InCommon(Part):
    """What the clients of the last round have in common and the client holds too; to a new client the whole model."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The overlap."""
        note = state.notes.get("send") or {"units": {}, "last": []}
        if str(client) not in note["units"]:
            return model.whole
        held = [model.cover(note["units"][str(i)]) for i in (client, *note["last"])]
        return reduce(lambda a, b: a & b, held)

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """What each client holds, and who answered last."""
        known: Mapping[str, Any] = (note or {"units": {}})["units"]
        last = [r.client for r in replies] or (note or {"last": []})["last"]
        return {"units": {**known, **{str(r.client): heard(r) for r in replies}}, "last": last}


@dataclass(frozen=True)
class OverlapMean(Part):
    """The mean, over all replies of a round, of the coordinates of which every one of them speaks."""

    weight: Weight = "samples"

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model; what is not common to all stays as it is."""
        if not replies:
            return dict(state.params)
        common = reduce(lambda a, b: a & b, (r.cover for r in replies))

        def piece(r: Reply) -> Params:
            return take(put(dict(state.params), r.cover, r.params), common)

        return mean(dict(state.params), [(piece(r), common, weight_of(r, self.weight)) for r in replies])


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (GroupLasso,)}
