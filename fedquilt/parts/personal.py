"""Local work that leaves a client with a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cover import Cover, Params
from ..fit import Fitted
from ..model import Model
from ..term import Step, Term
from ..types import Client, Grant, Order, Part, Served, Serving, Work
from .local import Train, answer, measured, received, remember, section
from .terms import Proximal


@dataclass(frozen=True)
class Twice(Part):
    """Ditto: after its work for the federation, a client trains a model of its own, pulled to what it received."""

    train: Train = Train()
    own: Train = Train()
    lam: float = 1.0

    def grant(self, cover: Cover, model: Model) -> Grant:
        """As the work for the federation has it."""
        return self.train.grant(cover, model)

    def __call__(self, order: Order, client: Client) -> Work:
        """Train for the federation, then for itself."""
        reply, memory = yield from self.train(order, client)
        whole, _ = received(order, client)
        start = section(client.memory, "own") or whole
        key = client.key.at("own")
        mine: Fitted = yield self.own.fit(order, client, start, key=key, anchor=whole, terms=(Proximal(self.lam),))
        return reply, remember(model=section(memory, "model"), own=mine.params)

    def serve(self, order: Order, client: Client) -> Serving:
        """The client's own model (what it would receive, before it has one)."""
        yield from ()
        return Served(client.model, section(client.memory, "own") or received(order, client)[0], order.norm)


@dataclass(frozen=True)
class Phases(Part):
    """FedRep: first only the head is trained, then only what is shared."""

    head: Train = Train()
    body: Train = Train()

    @property
    def train(self) -> Train:
        """As long a training of all at once, for a model that is adapted to a client who never trains."""
        epochs = [t.epochs if isinstance(t.epochs, int) else t.epochs.most for t in (self.head, self.body)]
        return replace(self.body, epochs=sum(epochs))

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def __call__(self, order: Order, client: Client) -> Work:
        """Two trainings, each with the other part frozen."""
        whole, sub = received(order, client)
        first: Fitted = yield self.head.fit(
            order, client, whole, key=client.key.at("head"), free=sub - order.cover, anchor={}
        )
        out: Fitted = yield self.body.fit(order, client, first.params, free=order.cover, anchor={})
        metrics = yield from measured(order, client, out)
        memory = remember(model=self.body.kept(order, client, out.params))
        return answer(order, client, out.params, metrics), memory

    def serve(self, order: Order, client: Client) -> Serving:
        """The newest base under the client's own head."""
        yield from ()
        return Served(client.model, received(order, client)[0], order.norm)


@dataclass(frozen=True)
class Blended(Term):
    r"""APFL: the loss of :math:`\alpha v + (1 - \alpha) \theta`, which moves v (alpha too, if None), not theta."""

    alpha: float | None = None

    def __call__(self, s: Step) -> Tensor:
        """The loss of the blend."""
        alpha = s.extra["alpha"] if self.alpha is None else self.alpha
        blend = {k: alpha * s.extra[k] + (1 - alpha) * p.detach() for k, p in s.params.items()}
        return s.mean(*s.task.loss(s.run(blend).logits, s.y))


@dataclass(frozen=True)
class Mixture(Part):
    """APFL: a private model trained beside the shared one, and used mixed with it; the mixing weight is learnt."""

    train: Train = Train()
    alpha: float = 0.5
    adaptive: bool = True

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def _mine(self, client: Client, whole: Params) -> tuple[Params, Tensor]:
        own = section(client.memory, "own") or {k: whole[k] for k in sorted(client.model.trainable)}
        alpha = client.memory.tensors.get("alpha", torch.tensor(self.alpha))
        return own, alpha

    def __call__(self, order: Order, client: Client) -> Work:
        """Both models see the same batches."""
        whole, _ = received(order, client)
        own, alpha = self._mine(client, whole)
        blended = Blended(None if self.adaptive else self.alpha)
        extra = {**own, "alpha": alpha} if self.adaptive else own
        out: Fitted = yield self.train.fit(order, client, whole, terms=(blended,), extra=extra, anchor={})
        metrics = yield from measured(order, client, out)
        mine = {k: out.extra[k] for k in own}
        memory = remember(model=self.train.kept(order, client, out.params), own=mine)
        weight = out.extra.get("alpha", alpha).clamp(0, 1)
        return answer(order, client, out.params, metrics), replace(memory, tensors={**memory.tensors, "alpha": weight})

    def serve(self, order: Order, client: Client) -> Serving:
        """The mixture with the newest shared model."""
        whole, _ = received(order, client)
        own, alpha = self._mine(client, whole)
        blend = {k: torch.lerp(whole[k], v, alpha.to(v.dtype)) for k, v in own.items()}
        yield from ()
        return Served(client.model, whole | blend, order.norm)


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (Blended,)}
