"""DepthFL's parts: as many stages of a net as a device carries, heads that teach each other, all of them in use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..cover import Cover
from ..fleet import Device
from ..key import Key
from ..model import Model
from ..step import mode
from ..term import Step, Term, call
from ..types import Client, Grant, Memory, Order, Part, Reply, Served, Serving, State, Work
from .control import Regularised
from .local import Train


@dataclass(frozen=True)
class Mutual(Term):
    r"""The losses of the exits, and what each head learns from the others.

    .. math:: \sum_{i < d} L(z_i, y) + \tfrac{\lambda}{d - 1} \sum_{i \le d} \sum_{j \ne i} KL(p_j \Vert p_i)

    The teacher j is cut off.  The loss of the last head is the task's, beside this term.
    """

    exits: tuple[str, ...]
    lam: float = 1.0

    features = True

    def __call__(self, s: Step) -> Tensor:
        """What is added to the loss of the last head."""
        said = [s.out.features[name] for name in self.exits] + [s.out.logits]
        total = torch.zeros((), dtype=s.out.logits.dtype)
        for i, own in enumerate(said):
            if i < len(said) - 1:
                total = total + s.mean(*s.task.loss(own, s.y))
            for j, other in enumerate(said):
                if self.lam and i != j:
                    pull = s.mean(*s.task.divergence(own, other.detach(), s.y))
                    total = total + self.lam / (len(said) - 1) * pull
        return total


# ---- how deep
def sample(model: Model) -> Tensor | None:
    """An input of the net, as far as what builds it says; else None."""
    spec: Mapping[str, Any] = model.spec
    if "vocabulary" in spec:
        return torch.zeros(1, int(spec.get("length", 8)), dtype=torch.int64)
    shape = spec.get("input") or ([spec["inputs"]] if "inputs" in spec else None)
    return None if shape is None else torch.zeros(1, *shape)


@cache
def costs(model: Model) -> tuple[float, ...]:
    """The floating point operations of the net of the first 1, 2, ... stages on one sample, its heads included.

    Matrix products and convolutions; where it is not known what the net takes, the number of its parameters.
    """
    out = []
    for k in range(1, len(model.stages) + 1):
        cut, x = model.upto(k), sample(model)
        if x is None:
            out.append(float(cut.count()))
            continue
        with FlopCounterMode(display=False) as counter, torch.no_grad(), mode(cut.net, train=False):
            call(cut.net, {n: v.clone() for n, v in cut.params().items()}, x)
        out.append(float(counter.get_total_flops()))
    return tuple(out)


def deepest(model: Model, share: float) -> int:
    """The most stages whose operations are at most this share of the whole net's; one at least.

    A net without exits has no part that is a net: all of its stages.
    """
    if not model.exits:
        return max(1, len(model.stages))
    every = costs(model)
    return max([k for k, n in enumerate(every, 1) if n <= share * every[-1] * (1 + 1e-9)], default=1)


def shallow(model: Model, k: int) -> Model:
    """The net of the first ``k`` stages."""
    return model.upto(k) if model.exits else model


@dataclass(frozen=True)
class Depth(Part):
    """The stages that a device carries, and their exits: those whose operations are within its width's share."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The first stages."""
        return shallow(model, deepest(model, device.width)).whole


@dataclass(frozen=True)
class Staged(Part):
    """Trains the net of the stages that it carries, all heads at once; uses the mean of what the heads say.

    ``alpha``: with FedDyn's two terms.  ``ramp``: the round from which heads teach each other in full;
    the share before is :math:`\\exp(-5 (1 - t / ramp)^2)`.  Without ``mutual`` they do not, and with
    ``last`` only the last head is trained (InclusiveFL).
    """

    train: Train = Train()
    alpha: float | None = 0.1
    ramp: int = 300
    mutual: bool = True
    last: bool = False

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def _own(self, order: Order, client: Client) -> tuple[Part, Client]:
        """The work on the net that this client has."""
        model = shallow(client.model, deepest(client.model, client.device.width))
        lam = math.exp(-5 * (1 - min(order.round, self.ramp) / self.ramp) ** 2) if self.mutual else 0.0
        some = model.exits and not self.last
        train = replace(self.train, terms=(*self.train.terms, Mutual(model.exits, lam))) if some else self.train
        work: Part = train if self.alpha is None else Regularised(train, self.alpha)
        return work, replace(client, model=model)

    def __call__(self, order: Order, client: Client) -> Work:
        """As the work within has it."""
        work, own = self._own(order, client)
        return cast(tuple[Reply, Memory], (yield from work(order, own)))  # type: ignore[operator]

    def serve(self, order: Order, client: Client) -> Serving:
        """The heads together; with ``last``, the last one."""
        work, own = self._own(order, client)
        served: Served = yield from work.serve(order, own)  # type: ignore[attr-defined]
        return served if self.last else replace(served, model=served.model.ensemble)


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (Mutual,)}
