"""Per-FedAvg (Fallah et al., NeurIPS 2020): local meta steps, of the first order and with the Hessian."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from fedquilt.cover import Params
from fedquilt.fit import SGD, Gradient
from fedquilt.model import Model
from fedquilt.parts.local import Train
from fedquilt.parts.meta import Meta, along
from fedquilt.types import Client, Handle, Order

from ..engine.tiny import KEY, client, close, drive, engine, order, samples, task, tiny, weights

Hessian = Literal["none", "free", "exact"]
hessians = pytest.mark.parametrize("hessian", ["none", "free", "exact"])


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


@hessians
def test_each_step_is_the_closed_form(hessian: Hessian) -> None:
    """Of a quadratic, differences of gradients are the Hessian but for rounding."""
    run, o, c, x, y = quadratic()
    meta = Meta(0.1, 0.05, 4, hessian=hessian)
    reply, _ = drive(run, meta(o, c))
    w = matrix(o.params)
    h = x.T @ x / 12  # of each row of the matrix
    for _ in range(4):
        grad = lambda v: (x @ v.T - y).T @ x / 12  # noqa: E731
        outer = grad(w - 0.1 * grad(w))
        w = w - 0.05 * (outer if hessian == "none" else outer @ (torch.eye(5, dtype=torch.float64) - 0.1 * h))
    assert torch.allclose(matrix(reply.params), w, atol=1e-10 if hessian == "free" else 1e-12)
    served = drive(run, meta.serve(o, c)).params
    assert torch.allclose(matrix(served), matrix(o.params) - 0.1 * grad(matrix(o.params)), atol=1e-12)


def test_the_hessian_is_the_limit_of_differences_of_gradients() -> None:
    m, run = tiny("cnn-none"), engine("cnn-none")
    x, y = samples("cnn-none", 10, KEY.at("train"), torch.float64)
    run.data[Handle(0, "train")] = x, y  # type: ignore[index]
    p, v = weights(m, dtype=torch.float64), weights(m, KEY.at("v"), torch.float64)
    ask = Gradient(m, task("cnn-none"), p, Handle(0, "train"), KEY, along=v)
    d = 1e-6
    ahead, behind = (run.answer(replace(ask, params=along(p, v, s), along=None)).params for s in (d, -d))
    assert close(run.answer(ask).along, {k: (ahead[k] - behind[k]) / (2 * d) for k in v}, 5)


@hessians
def test_the_batches_of_a_step_are_different_and_the_same_every_time(hessian: Hessian) -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"))
    meta = Meta(steps=2, batch=4, hessian=hessian)
    first, again = drive(run, meta(o, c))[0], drive(run, meta(o, c))[0]
    assert all(torch.equal(v, again.params[k]) for k, v in first.params.items())
    batches = 2 if hessian == "none" else 3  # both gradients of a difference are on the same samples
    asked = batches + (hessian == "free")
    assert len(run.asked) == 2 * 2 * asked and len({r.key.path for r in run.asked}) == 2 * batches  # type: ignore[union-attr]


@hessians
def test_without_an_inner_step_it_is_plain_training(hessian: Hessian) -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"))
    reply, _ = drive(run, Meta(0.0, 0.05, 3, hessian=hessian)(o, c))
    plain, _ = drive(run, Train(SGD(0.05), 3, 10)(o, c))
    assert close(reply.params, plain.params, 5)  # statistics too: a meta step leaves those of its outer pass
