"""FedLPS's learned patterns: which units a sub-model is made of is trained together with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..cover import Cover, Params, Place, count_units, put, take
from ..fit import Fit, Fitted, Given, Gradient, Gradients, Step, Term, View
from ..model import Model
from ..types import Client, Grant, Order, Part, Served, Serving, Work
from .importance import by_unit, unit_scores
from .local import Train, answer, measured, received, remember, section
from .terms import Proximal

Pattern = Literal["learned", "random", "ordered", "magnitude"]


# ---- where units stand
def made(model: Model) -> tuple[Place, ...]:
    """Where units are made: their rows, with bias and normalisation; the columns of an embedding."""
    mine = [p for p in model.places if p.name in model.trainable]
    rows = {p.axis.group for p in mine if p.dim == 0}
    return tuple(p for p in mine if p.dim == 0 or (p.axis.group not in rows and _embeds(model, p)))


def read(model: Model) -> tuple[Place, ...]:
    """Where units are read: the columns of what they feed."""
    mine = [p for p in model.places if p.name in model.trainable and p.dim > 0]
    return tuple(p for p in mine if not _embeds(model, p) or p.name.startswith(model.head + "."))


def _embeds(model: Model, place: Place) -> bool:
    return isinstance(model.net.get_submodule(place.name.rpartition(".")[0]), nn.Embedding)


def along(units: Tensor, place: Place, tensor: Tensor) -> Tensor:
    """What is said of units, as a factor of the tensor in which they stand; 1 for what is beside them."""
    a, size = place.axis, tensor.shape[place.dim]
    own = units.view(1, -1, 1).expand(a.repeat, -1, a.block).reshape(-1)
    rest = size - place.start - place.length
    if place.start or rest:
        own = torch.cat([own.new_ones(place.start), own, own.new_ones(rest)])
    return own.view([-1 if d == place.dim else 1 for d in range(tensor.dim())])


def first(scores: Tensor, count: Tensor) -> Tensor:
    """Whether each unit is among the ``count`` best (of equals the first): exactly so many."""
    return scores.argsort(descending=True, stable=True).argsort() < count


@dataclass(frozen=True)
class Masked(View):
    r"""Weights under a mask of units that is trained: what a unit of low score says is not read.

    The step function has no derivative, so backward it counts as the identity (straight-through):
    with w the weights that read unit j, on which the mask stands,

    .. math:: \tilde w = w \cdot step(q_j - \tau), \qquad
        \partial L / \partial q_j = \sum_{w \text{ reads } j} w \, \partial L / \partial \tilde w

    for units that are off as well.  It is the same net as with the unit's own weights masked, and for units
    that are on the same derivative; but behind a ReLU a unit of no weights has none, and would never come back.
    How many are on is a constant of the client: ``keep/<group>`` of the anchor.  What may move are the weights
    of the sub-model, ``places``.
    """

    reads: tuple[Place, ...]
    places: tuple[Place, ...]

    @staticmethod
    def of(model: Model) -> Masked:
        """The mask of all groups of a model."""
        return Masked(read(model), tuple(p for p in model.places if p.name in model.trainable))

    def given(self, fit: Fit, labels: Tensor) -> Given:
        """How many units of each group are on."""
        return {k: v for k, v in fit.anchor.items() if k.startswith("keep/")}

    def __call__(self, params: Params, extra: Params, given: Given) -> tuple[Params, Params]:
        """The weights under the mask, and where they may move."""
        used, moves = dict(params), Params()
        on = {g: first(q, given["keep/" + g]) for g, q in extra.items()}
        # exactly 0 or 1: (1 + q) - q would be rounded
        gate = {g: on[g].to(q.dtype) + (q - q.detach()) for g, q in extra.items()}
        for p in self.reads:
            used[p.name] = used[p.name] * along(gate[p.axis.group], p, params[p.name])
        for p in self.places:
            here = along(on[p.axis.group], p, params[p.name]).expand(params[p.name].shape)
            moves[p.name] = moves[p.name] & here if p.name in moves else here
        return used, moves


@dataclass(frozen=True)
class Importance(Term):
    r"""FedLPS's importance regulariser, with its misprint put right.

    .. math:: \lambda \sum_{layers} \tfrac{1}{J} \lVert Q - \sigma(\lvert\theta\rvert_J) \rVert^2

    where :math:`\lvert\theta\rvert_J` is the sum of the absolute weights of each of the J units, which has no part in
    the gradient of the weights.
    """

    weight: float
    places: tuple[Place, ...]

    def __call__(self, s: Step) -> Tensor:
        """The sum over groups of the mean over units."""
        far = [(q - size.sigmoid()).square().mean() for q, size in _sizes(s.params, s.extra, self.places)]
        return self.weight * torch.stack(far).sum() if far else torch.zeros((), dtype=s.out.logits.dtype)


def _sizes(params: Params, scores: Params, places: tuple[Place, ...]) -> list[tuple[Tensor, Tensor]]:
    """Of each group its scores, and the sums of the absolute weights of its units."""
    out = []
    for g, q in scores.items():
        each = [by_unit(params[p.name].detach().abs(), p).sum(1) for p in places if p.axis.group == g]
        out.append((q, torch.stack(each).sum(0)))
    return out


# ---- the work
@dataclass(frozen=True)
class Learned(Part):
    """Trains a sub-model whose units it chooses itself; speaks of those that are on at the end, and uses them.

    ``pattern``: by scores that are ``learned`` with the weights and kept for the next time, or ``random`` ones,
    the first units (``ordered``), or those of the greatest ``magnitude``.  How many is the ratio that the
    order names, but no more than the device carries.

    ``probe``: how often scores are learned.  By ``epoch``: one dense gradient on one batch, at the masked
    model, is what scores follow for as many steps as the epoch has, and the epoch is trained on the
    sub-model alone, which is as small as its ratio.  By ``step``: scores move with the weights in every step, and
    every step costs what the dense model does, since units that are off need their gradient too.
    """

    train: Train = Train()
    pattern: Pattern = "learned"
    mu: float = 1.0
    weight: float = 1.0
    probe: Literal["epoch", "step"] = "epoch"

    def __post_init__(self) -> None:
        if not isinstance(self.train.epochs, int):
            raise ValueError("a pattern is learned over a fixed number of epochs")

    def grant(self, cover: Cover, model: Model) -> Grant:
        """A reply speaks about some units of what was sent."""
        return Grant(cover, frozenset({"same", "whole", "block"}))

    def __call__(self, order: Order, client: Client) -> Work:
        """Choose and train by turns; answer for the units that are on; keep them, and the scores."""
        m = client.model
        start, _ = received(order, client)
        ratio = min(float(order.scalars.get("ratio", 1.0)), client.device.width)
        counts = {g: count_units(ratio, n) for g, n in m.groups.items()}
        scores = self.scores(client, start)
        if self.pattern == "learned" and self.probe == "step":
            params, scores, loss = yield from self._each_step(order, client, start, scores, counts)
        else:
            params, scores, loss = yield from self._each_epoch(order, client, start, scores, counts)
        sub = pattern_of(m, scores, counts)
        metrics = yield from measured(order, client, Fitted(take(params, sub), loss, 0, 0))
        memory = remember(
            model=self.train.kept(order, client, params),
            own=take(params, sub),
            score=scores if self.pattern == "learned" else {},
        )
        return answer(order, client, params, metrics, order.cover & sub), memory

    def scores(self, client: Client, params: Params) -> Params:
        """What orders the units at the beginning."""
        groups, key = client.model.groups, client.key
        if self.pattern == "ordered":
            return {g: -torch.arange(n).float() for g, n in groups.items()}
        if self.pattern == "magnitude":
            return {g: s.float() for g, s in unit_scores(client.model, params).items()}
        kept = section(client.memory, "score") if self.pattern == "learned" else {}
        return kept or {g: torch.rand(n, generator=key.at("score", g).torch()) for g, n in groups.items()}

    def _terms(self) -> tuple[Term, ...]:
        return (Proximal(2 * self.mu),) if self.mu else ()

    def _each_step(self, order: Order, client: Client, start: Params, scores: Params, counts: dict[str, int]) -> Any:
        """Weights and scores move together, in every step of the dense model under its mask."""
        places = made(client.model)
        keep = {"keep/" + g: torch.tensor(n) for g, n in counts.items()}
        terms = (*self._terms(), *((Importance(self.weight, places),) if self.weight else ()))
        out: Fitted = yield self.train.fit(
            order, client, start, terms=terms, anchor=start | keep, view=Masked.of(client.model), extra=scores
        )
        return out.params, dict(out.extra), out.loss

    def _each_epoch(self, order: Order, client: Client, start: Params, scores: Params, counts: dict[str, int]) -> Any:
        """Scores follow one gradient of the dense model; then the sub-model trains for an epoch, alone."""
        m, params = client.model, dict(start)
        losses: list[float] = []
        steps = -(-client.counts["train"] // self.train.batch)
        assert isinstance(self.train.epochs, int)
        for e in range(self.train.epochs):
            if self.pattern == "learned":
                scores = yield from self._follow(order, client, params, scores, counts, e, steps)
            sub = pattern_of(m, scores, counts)
            anchor = {k: v for k, v in take(start, sub).items() if k in m.trainable} if self.mu else {}
            out: Fitted = yield self.train.fit(
                order,
                client,
                take(params, sub),
                key=client.key.at("train") if e == 0 else client.key.at("train", e),
                epochs=1,
                terms=self._terms(),
                anchor=anchor,
            )
            params, losses = put(params, sub, out.params), [*losses, out.loss]
        return params, scores, sum(losses) / max(1, len(losses))

    def _follow(
        self,
        order: Order,
        client: Client,
        params: Params,
        scores: Params,
        counts: dict[str, int],
        epoch: int,
        steps: int,
    ) -> Any:
        """So many steps of the scores, along the task's gradient at the model that is masked as it now is."""
        m, mask = client.model, Masked.of(client.model)
        used, _ = mask(params, scores, {"keep/" + g: torch.tensor(n) for g, n in counts.items()})
        g: Gradients = yield Gradient(
            m,
            client.task,
            used,
            client.train,
            client.key.at("probe", epoch),
            batch=self.train.batch,
            norm=order.norm,
            loss=self.train.loss,
        )
        slope = {
            group: torch.stack(
                [by_unit(g.params[p.name] * params[p.name], p).sum(1) for p in mask.reads if p.axis.group == group]
            ).sum(0)
            for group in scores
        }
        sizes = _sizes(params, scores, made(m))
        target = {group: size.sigmoid() for group, (_, size) in zip(scores, sizes, strict=True)}
        lr, out = self.train.optim.at(order.round).lr, dict(scores)
        for _ in range(steps):
            for group, q in out.items():
                pull = 2 * self.weight * (q - target[group]) / len(q)
                out[group] = q - lr * (slope[group] + pull)
        return out

    def serve(self, order: Order, client: Client) -> Serving:
        """The masked model of its last round, as small as it is; before there is one, what it would receive."""
        own = section(client.memory, "own")
        yield from ()
        return Served(client.model, own or received(order, client)[0], order.norm)


def pattern_of(model: Model, scores: Params, counts: dict[str, int]) -> Cover:
    """The sub-model of the best units of each group."""
    return model.cover({g: first(scores[g], torch.tensor(n)).nonzero().flatten() for g, n in counts.items()})


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (Importance,)}
VIEWS: Mapping[str, type[View]] = {v.__name__: v for v in (Masked,)}
