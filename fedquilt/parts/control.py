"""Control variates: gradients corrected by what server and client remember of earlier rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cover import Cover, Params, put, take
from ..fit import Fitted
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..norm import is_statistic
from ..types import Brief, Client, Grant, Order, Part, Reply, Serving, State, Work
from .local import Train, answer, measured, received, remember, section
from .merge import CoverMean, Weight, changes, stepped, union, weight_of
from .terms import Proximal


def trained(cover: Cover, model: Model) -> Cover:
    """What of a cover a gradient moves."""
    return cover.only(model.trainable.__contains__)


@dataclass(frozen=True)
class Controlled(Part):
    """SCAFFOLD's client: each step is corrected by the server's control variate less the client's own."""

    train: Train = Train()

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent, and the change of the control variate at the same coordinates."""
        piece = trained(cover, model)
        params = model.params()
        return Grant(cover, extras={f"dc/{k}": (params[k].dtype, shape) for k, shape in piece.pieces.items()})

    def __call__(self, order: Order, client: Client) -> Work:
        """Train under correction; the new variate is the mean gradient of this training (the paper's option II)."""
        whole, sub = received(order, client)
        piece = trained(order.cover, client.model)
        zero = {k: torch.zeros(client.model.shapes[k]) for k in sorted(client.model.trainable)}
        mine = take(section(client.memory, "c") or zero, piece)
        server = {k[2:]: v for k, v in order.extra.items() if k.startswith("c/")}
        start = take(whole, sub)
        fit = self.train.fit(order, client, start, correct={k: server[k] - mine[k] for k in mine})
        out: Fitted = yield fit
        metrics = yield from measured(order, client, out)
        paid = max(out.steps, 1) * fit.optim.lr
        change = {k: (start[k] - out.params[k]) / paid - server[k] for k in mine}
        whole = put(whole, sub, out.params)
        c = put(section(client.memory, "c") or zero, piece, {k: mine[k] + change[k] for k in mine})
        extra = {f"dc/{k}": v for k, v in change.items()}
        memory = remember(model=self.train.kept(order, client, whole), c=c)
        return answer(order, client, whole, metrics, extra=extra), memory

    def serve(self, order: Order, client: Client) -> Serving:
        """As the plain training has it."""
        return (yield from self.train.serve(order, client))


@dataclass(frozen=True)
class Scaffold(Part):
    r"""SCAFFOLD's server: a step along the mean change, and its control variate moved by the share of clients.

    .. math:: \theta \leftarrow \theta + \eta_g \tfrac{1}{|S|} \sum_i \Delta_i, \qquad
        c \leftarrow c + \tfrac{|S|}{N} \tfrac{1}{|S|} \sum_i \Delta c_i
    """

    lr: float = 1.0
    weight: Weight = "uniform"

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """The server's control variate, where the client trains."""
        held = (state.notes.get("merge") or {}).get("c", {})
        zero = {k: torch.zeros(model.shapes[k]) for k in cover if k in model.trainable}
        return Brief(extra={f"c/{k}": v for k, v in take(zero | held, trained(cover, model)).items()})

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The control variate after these replies."""
        c: Params = dict((note or {}).get("c", {}))
        for r in replies:
            for k, v in r.extra.items():
                name = k[3:]
                if k.startswith("dc/"):
                    span = r.cover[name]
                    held = c.get(name, torch.zeros(span.shape))
                    c[name] = span.put(held, span.take(held) + v / len(fleet))
        return {"c": c}

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        if self.lr == 1.0:
            return CoverMean(self.weight)(state, replies)
        num, den = changes(state, replies, lambda r: weight_of(r, self.weight))
        step = {
            k: (1.0 if is_statistic(k) else self.lr) * v / torch.where(den[k] > 0, den[k], 1.0) for k, v in num.items()
        }
        return stepped(dict(state.params), step)


@dataclass(frozen=True)
class Regularised(Part):
    r"""FedDyn's client.

    .. math:: \min F_i(\theta) - \langle g_i, \theta \rangle + \frac{\alpha}{2} \lVert \theta - \theta^t \rVert^2,
        \qquad g_i \leftarrow g_i - \alpha (\theta_i - \theta^t)
    """

    train: Train = Train()
    alpha: float = 0.1

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def __call__(self, order: Order, client: Client) -> Work:
        """Train with the linear and the quadratic term."""
        whole, sub = received(order, client)
        piece = trained(order.cover, client.model)
        zero = {k: torch.zeros(client.model.shapes[k]) for k in sorted(client.model.trainable)}
        g = zero | section(client.memory, "g")
        start = take(whole, sub)
        anchor = {k: start[k] for k in piece}
        correct = {k: -v for k, v in take(g, piece).items()}
        terms = (*self.train.terms, Proximal(self.alpha))
        out: Fitted = yield self.train.fit(order, client, start, correct=correct, terms=terms, anchor=anchor)
        metrics = yield from measured(order, client, out)
        moved = {k: v - self.alpha * (out.params[k] - start[k]) for k, v in take(g, piece).items()}
        whole = put(whole, sub, out.params)
        memory = remember(model=self.train.kept(order, client, whole), g=put(g, piece, moved))
        return answer(order, client, whole, metrics), memory

    def serve(self, order: Order, client: Client) -> Serving:
        """As the plain training has it."""
        return (yield from self.train.serve(order, client))


@dataclass(frozen=True)
class Dynamic(Part):
    r"""FedDyn's server.

    .. math:: h \leftarrow h - \alpha \tfrac{1}{N} \sum_{i \in S} (\theta_i - \theta^t), \qquad
        \theta^{t+1} = \tfrac{1}{|S|} \sum_{i \in S} \theta_i - h / \alpha
    """

    alpha: float = 0.1

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The sum h after these replies."""
        num, _ = changes(state, replies, lambda r: 1.0)
        h: Params = dict((note or {}).get("h", {}))
        for k, v in num.items():
            if state.params[k].is_floating_point() and not is_statistic(k):
                h[k] = h.get(k, torch.zeros_like(v)) - self.alpha * v / len(fleet)
        return {"h": h}

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        plain, spoken = CoverMean("uniform")(state, replies), union(r.cover for r in replies)
        h = {k: v for k, v in state.notes["merge"]["h"].items() if k in spoken}  # of the rest nobody said anything
        return stepped(plain, {k: torch.where(spoken[k].dense(), -v / self.alpha, 0.0) for k, v in h.items()})
