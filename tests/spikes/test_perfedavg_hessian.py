"""Per-FedAvg (Fallah et al., NeurIPS 2020): local meta steps, of the first order and with the Hessian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedquilt.cover import Cover, Params
from fedquilt.fit import SGD, Gradient, Gradients
from fedquilt.model import Model
from fedquilt.parts.local import Train, received
from fedquilt.types import Client, Grant, Handle, Memory, Order, Part, Reply, Served

from ..engine.tiny import KEY, client, close, drive, engine, order, samples, task, tiny, weights


# ---- the piece
def stepped(p: Params, grads: Params, lr: float) -> Params:
    """``p`` less ``lr`` times the gradient; statistics as they are."""
    return p | {k: p[k] - lr * g for k, g in grads.items()}


@dataclass(frozen=True)
class Meta(Part):
    """``tau`` steps down the gradient of the loss after one step; each gradient on a batch of its own."""

    alpha: float = 0.1
    beta: float = 0.05
    tau: int = 3
    batch: int | None = None
    hessian: bool = False

    def grant(self, cover: Cover, model: Model) -> Grant:
        return Grant(cover)

    def ask(self, order: Order, client: Client, p: Params, *place: object, along: Params | None = None) -> Gradient:
        """The gradient at ``p``."""
        at = client.key.at("meta", *place)
        return Gradient(client.model, client.task, p, client.train, at, self.batch, order.norm, along=along)

    def __call__(self, order: Order, client: Client) -> Any:
        w, _ = received(order, client)
        total = 0.0
        for t in range(self.tau):
            inner: Gradients = yield self.ask(order, client, w, t, "inner")
            outer: Gradients = yield self.ask(order, client, stepped(w, inner.params, self.alpha), t, "outer")
            step = outer.params
            if self.hessian:
                bend: Gradients = yield self.ask(order, client, w, t, "hessian", along=step)
                step = {k: g - self.alpha * bend.along[k] for k, g in step.items()}
            w = stepped(w, step, self.beta) | outer.statistics
            total += inner.loss / self.tau
        metrics = {"loss": total}
        return Reply(order.client, order.round, {k: w[k] for k in order.cover}, order.cover, 1.0, metrics), Memory()

    def serve(self, order: Order, client: Client) -> Any:
        w, _ = received(order, client)
        inner: Gradients = yield self.ask(order, client, w, "serve")
        return Served(client.model, stepped(w, inner.params, self.alpha) | inner.statistics, order.norm)


# ---- its invariants
def quadratic() -> tuple[Any, Order, Client, torch.Tensor, torch.Tensor]:
    """A linear model of 4 inputs and 2 targets in float64, whose loss is a quadratic with a known Hessian."""
    m, run = tiny("linear"), engine("linear", 12)
    x, y = samples("linear", 12, KEY.at("train"), torch.float64)
    run.data[Handle(0, "train")] = x, y  # type: ignore[index]
    o = order(weights(m, dtype=torch.float64), m.whole)
    m64 = Model(m.net, m.axes, m.head, m.stages, m.spec)
    m64.__dict__["_initial"] = {k: v.double() for k, v in m.params().items()}
    return run, o, client(m64, task("linear")), torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], 1), y


def matrix(p: Params) -> torch.Tensor:
    """Weights and biases as one matrix."""
    return torch.cat([p["head.weight"], p["head.bias"][:, None]], 1)


@pytest.mark.parametrize("hessian", [False, True], ids=["first order", "hessian"])
def test_each_step_is_the_closed_form(hessian: bool) -> None:
    run, o, c, x, y = quadratic()
    meta = Meta(0.1, 0.05, 4, hessian=hessian)
    reply, _ = drive(run, meta(o, c))
    w = matrix(o.params)
    h = x.T @ x / 12  # of each row of the matrix
    for _ in range(4):
        grad = lambda v: (x @ v.T - y).T @ x / 12  # noqa: E731
        outer = grad(w - 0.1 * grad(w))
        w = w - 0.05 * (outer @ (torch.eye(5, dtype=torch.float64) - 0.1 * h) if hessian else outer)
    assert torch.allclose(matrix(reply.params), w, atol=1e-12)
    served = drive(run, meta.serve(o, c)).params
    assert torch.allclose(matrix(served), matrix(o.params) - 0.1 * grad(matrix(o.params)), atol=1e-12)


def test_the_hessian_is_the_limit_of_differences_of_gradients() -> None:
    m, run = tiny("cnn-none"), engine("cnn-none")
    x, y = samples("cnn-none", 10, KEY.at("train"), torch.float64)
    run.data[Handle(0, "train")] = x, y  # type: ignore[index]
    p, v = weights(m, dtype=torch.float64), weights(m, KEY.at("v"), torch.float64)
    ask = Gradient(m, task("cnn-none"), p, Handle(0, "train"), KEY, along=v)
    d = 1e-6
    ahead, behind = (run.answer(replace(ask, params=stepped(p, v, s), along=None)).params for s in (-d, d))
    assert close(run.answer(ask).along, {k: (ahead[k] - behind[k]) / (2 * d) for k in v}, 5)


def test_the_batches_of_a_step_are_different_and_the_same_every_time() -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"))
    meta = Meta(tau=2, batch=4, hessian=True)
    first, again = drive(run, meta(o, c))[0], drive(run, meta(o, c))[0]
    assert all(torch.equal(v, again.params[k]) for k, v in first.params.items())
    assert len(run.asked) == 12 and len({r.key.path for r in run.asked}) == 6  # type: ignore[union-attr]


def test_without_an_inner_step_it_is_plain_training() -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"))
    for hessian in (False, True):
        reply, _ = drive(run, Meta(0.0, 0.05, 3, hessian=hessian)(o, c))
        plain, _ = drive(run, Train(SGD(0.05), 3, 10)(o, c))
        assert close(reply.params, plain.params, 5)  # statistics too: a meta step leaves those of its outer pass
