"""Local work made of single gradients: meta steps, and steps on the Moreau envelope."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from ..cover import Cover, Params, put, take
from ..fit import SGD, Fitted, Gradient, Gradients
from ..model import Model
from ..types import Client, Grant, Order, Part, Served, Serving, Work
from .local import answer, measured, received, remember, section

Ask = Generator[Gradient, Gradients, Gradients]


def asked(order: Order, client: Client, p: Params, batch: int, *place: object, **more: Any) -> Ask:
    """The gradient at ``p`` on a random batch that the place names."""
    key = client.key.at("step", *place)
    got = yield Gradient(client.model, client.task, p, client.train, key, batch, order.norm, **more)
    return got


def along(p: Params, step: Params, length: float) -> Params:
    """``p`` moved so far along a direction; statistics as they are."""
    return p | {k: p[k] + length * g for k, g in step.items()}


@dataclass(frozen=True)
class Meta(Part):
    r"""Per-FedAvg: ``steps`` steps down the gradient of what the loss is after one step of size ``alpha``.

    .. math:: \theta \leftarrow \theta - \beta (I - \alpha \nabla^2 F_i(\theta; D''))
        \nabla F_i(\theta - \alpha \nabla F_i(\theta; D); D')

    D, D' and D'' are batches of their own.  ``hessian`` says what becomes of the bracket: ``none`` (first
    order), ``free`` (a difference of two gradients, ``delta`` apart) or ``exact``.
    """

    alpha: float = 0.01
    beta: float = 0.05
    steps: int = 10
    batch: int = 32
    hessian: Literal["none", "free", "exact"] = "none"
    delta: float = 1e-3
    serving: int = 1

    @property
    def optim(self) -> SGD:
        """Of plain steps, with which a model is adapted to a client who never trains."""
        return SGD(self.beta)

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def __call__(self, order: Order, client: Client) -> Work:
        """The meta steps."""
        whole, sub = received(order, client)
        w, total = take(whole, sub), 0.0
        for t in range(self.steps):
            inner = yield from asked(order, client, w, self.batch, t, "inner")
            outer = yield from asked(order, client, along(w, inner.params, -self.alpha), self.batch, t, "outer")
            g = outer.params
            if self.hessian != "none":
                bend = yield from self._bend(order, client, w, g, t)
                g = {k: v - self.alpha * bend[k] for k, v in g.items()}
            w = along(w, g, -self.beta) | outer.statistics
            total += inner.loss / self.steps
        metrics = yield from measured(order, client, Fitted(w, total, self.steps, 0))
        return answer(order, client, put(whole, sub, w), metrics), remember()

    def _bend(self, order: Order, client: Client, w: Params, g: Params, t: int) -> Generator[Any, Any, Params]:
        """The Hessian at ``w`` times ``g``."""
        if self.hessian == "exact":
            got = yield from asked(order, client, w, self.batch, t, "hessian", along=g)
            return dict(got.along)
        ahead = yield from asked(order, client, along(w, g, self.delta), self.batch, t, "hessian")
        behind = yield from asked(order, client, along(w, g, -self.delta), self.batch, t, "hessian")
        return {k: (v - behind.params[k]) / (2 * self.delta) for k, v in ahead.params.items()}

    def serve(self, order: Order, client: Client) -> Serving:
        """What was received after ``serving`` steps of size alpha on the client's own data."""
        whole, sub = received(order, client)
        w = take(whole, sub)
        for t in range(self.serving):
            got = yield from asked(order, client, w, self.batch, t, "serve")
            w = along(w, got.params, -self.alpha) | got.statistics
        return Served(client.model, w, order.norm)


@dataclass(frozen=True)
class Moreau(Part):
    r"""pFedMe: the shared model follows personal ones that stay near it.

    .. math:: \theta \approx \arg\min F_i(\theta; D) + \tfrac{\lambda}{2} \lVert \theta - w \rVert^2, \qquad
        w \leftarrow w - \eta \lambda (w - \theta)

    ``steps`` times, each with a batch of its own and ``inner`` steps of size ``lr`` towards the minimum.
    """

    lam: float = 15.0
    eta: float = 0.005
    lr: float = 0.05
    steps: int = 20
    inner: int = 5
    batch: int = 32

    @property
    def optim(self) -> SGD:
        """Of plain steps, with which a model is adapted to a client who never trains."""
        return SGD(self.lr)

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def __call__(self, order: Order, client: Client) -> Work:
        """The steps; the last personal model stays."""
        whole, sub = received(order, client)
        w = take(whole, sub)
        own, total = w, 0.0
        for r in range(self.steps):
            for k in range(self.inner):
                got = yield from asked(order, client, own, self.batch, r)
                pull = {n: g + self.lam * (own[n] - w[n]) for n, g in got.params.items()}
                own = along(own, pull, -self.lr) | got.statistics
                total += got.loss / self.steps if k == 0 else 0.0
            far = {n: w[n] - own[n] for n in got.params}
            w = along(w, far, -self.eta * self.lam) | got.statistics
        metrics = yield from measured(order, client, Fitted(w, total, self.steps, 0))
        return answer(order, client, put(whole, sub, w), metrics), remember(own=own)

    def serve(self, order: Order, client: Client) -> Serving:
        """The client's personal model (what it would receive, before it has one)."""
        yield from ()
        return Served(client.model, section(client.memory, "own") or take(*received(order, client)), order.norm)
