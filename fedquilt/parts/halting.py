"""When help may end: Mishra and Gupta's Theorem 1, inverted, and a pilot that estimates what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

import torch

from ..cover import Params
from ..fit import Evaluate, Fit, Fitted, Gradient, Gradients, Scored
from ..types import Client, Order


def halting_epoch(epsilon: float, epochs: int, lr: float, rho: float, beta: float, phi: float, upsilon: float) -> int:
    r"""The first epoch after which help may end, if losses are to vary by no more than ``epsilon``.

    .. math:: h = \frac{\ln (\epsilon^2 \upsilon \eta (2 - \beta \eta) / 2 \rho \phi)}{\ln (1 - \eta \beta)} - 1

    rounded up, and brought into 1 to epochs - 1.  The paper says epsilon of a given e; this is that formula solved
    for e.  It holds for :math:`\eta \beta < 1`.  Where both runs are the same, help may end at once.
    """
    last = max(1, epochs - 1)
    step = lr * beta
    if min(rho, phi, step) <= 0 or math.isinf(upsilon):
        return 1
    if step >= 1:
        return last
    inside = epsilon**2 * upsilon * lr * (2 - step) / (2 * rho * phi)
    if inside <= 0:
        return last
    return min(last, max(1, math.ceil(math.log(inside) / math.log(1 - step) - 1 - 1e-9)))


def bound(epoch: int, lr: float, rho: float, beta: float, phi: float, upsilon: float) -> float:
    r"""Theorem 1 as it stands: how much losses may vary if help ends after an epoch.

    .. math:: \epsilon = \sqrt{2 \rho \phi (1 - \eta \beta)^{h + 1} / (\upsilon \eta (2 - \beta \eta))}
    """
    step = lr * beta
    return math.sqrt(2 * rho * phi * (1 - step) ** (epoch + 1) / (upsilon * lr * (2 - step)))


@dataclass(frozen=True)
class Apart:
    """Two runs at the end of an epoch: how far apart they are in weights, in the loss and in its gradient."""

    weights: float
    loss: float
    slope: float


def estimates(seen: Sequence[Apart]) -> dict[str, float]:
    r"""What the theorem needs: :math:`\rho` and :math:`\beta` at their largest, :math:`\phi` the mean gap of gradients.

    :math:`\upsilon = 1 / Var(\lVert W_H - W_E \rVert)^2` as in the paper; infinite where that does not vary.
    """
    moved = [a for a in seen if a.weights > 0]
    spread = pvariance([a.weights for a in seen]) if seen else 0.0
    return {
        "rho": max((abs(a.loss) / a.weights for a in moved), default=0.0),
        "beta": max((a.slope / a.weights for a in moved), default=0.0),
        "phi": fmean([a.slope for a in seen]) if seen else 0.0,
        "upsilon": 1 / spread**2 if spread > 0 else math.inf,
    }


@dataclass(frozen=True, eq=False)
class Piloted:
    """What a pilot gives: the helped run's trainings, one after another, and what was seen beside it."""

    outs: tuple[Fitted, ...]
    seen: tuple[Apart, ...]


Ask = Callable[[Fitted | None, int, int], Fit]  # the request that goes on from a training, for epochs, named by when


def pilot(order: Order, client: Client, epochs: int, helped: Ask, alone: Ask) -> Generator[Any, Any, Piloted]:
    """Train with help to the end, and beside it from the middle on without; compare both after each epoch."""
    middle = max(1, epochs // 2)
    on: Fitted = yield helped(None, middle, 0)
    outs, seen, off = [on], [], on
    for e in range(middle, epochs):
        on = yield helped(on, 1, e)
        off = yield alone(off, 1, e)
        outs.append(on)
        seen.append((yield from _apart(order, client, on, off)))
    return Piloted(tuple(outs), tuple(seen))


def _apart(order: Order, client: Client, on: Fitted, off: Fitted) -> Generator[Any, Any, Apart]:
    slopes, losses = [], []
    for params in (on.params, off.params):
        g: Gradients = yield Gradient(
            client.model, client.task, params, client.train, client.key.at("pilot"), norm=order.norm
        )
        s: Scored = yield Evaluate(client.model, client.task, params, client.train, order.norm)
        slopes.append(g.params)
        losses.append(s.metrics.get("loss", g.loss))
    names = client.model.trainable
    return Apart(far(on.params, off.params, names), losses[0] - losses[1], far(slopes[0], slopes[1], names))


def far(a: Params, b: Params, names: Any) -> float:
    """The Euclidean distance of two sets of tensors."""
    gaps = [(a[k].double() - b[k].double()).square().sum() for k in sorted(names) if k in a]
    return float(torch.stack(gaps).sum().sqrt()) if gaps else 0.0
