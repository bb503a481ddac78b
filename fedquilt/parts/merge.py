"""How replies become the next global model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..cover import Cover, Params, mean, put, take
from ..fleet import Fleet
from ..norm import is_statistic
from ..types import Part, Reply, State

Weight = Literal["samples", "uniform"]


@dataclass(frozen=True)
class CoverMean(Part):
    """Each coordinate averaged over the clients that spoke of it; where nobody did it stays.

    ``weight``: by ``samples`` (the client's weight, its number of training samples) or ``uniform``.
    """

    weight: Weight = "samples"

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        return mean(dict(state.params), [(r.params, r.cover, weight_of(r, self.weight)) for r in replies])


@dataclass(frozen=True)
class Filled(Part):
    r"""What clients changed, averaged over all of them: who did not speak of a coordinate changed it by nothing.

    .. math:: \theta^{t+1} = \theta^t + \eta \sum_i n_i M_i (\theta_i - \theta^{t_i}) / \sum_i n_i

    A change is measured from what the client was sent, so a late reply adds what it learnt and does
    not bring old values back.  ``lr`` is the server's step (1 for statistics), ``staleness`` the
    exponent a in the factor :math:`(1 + \tau)^{-a}` of a reply that is :math:`\tau` rounds old.
    """

    weight: Weight = "samples"
    lr: float = 1.0
    staleness: float = 0.0

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""

        def size(r: Reply) -> float:
            return weight_of(r, self.weight) * float((1 + state.round - r.round) ** -self.staleness)

        num, _ = changes(state, replies, size)
        total = sum(weight_of(r, self.weight) for r in replies)
        if not total:
            return state.params
        step = {k: (1.0 if is_statistic(k) else self.lr) * v / total for k, v in num.items()}
        return stepped(dict(state.params), step)


@dataclass(frozen=True)
class Mixed(Part):
    r"""FedAsync (arXiv:1903.03934): each reply is mixed in as it comes, the less the older it is.

    .. math:: \theta \leftarrow (1 - \alpha_\tau) \theta + \alpha_\tau \theta_i, \qquad
        \alpha_\tau = \alpha (1 + \tau)^{-a}
    """

    alpha: float = 0.6
    staleness: float = 0.5

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        params = dict(state.params)
        for r in replies:
            alpha = self.alpha * (1 + state.round - r.round) ** -self.staleness
            far = {k: alpha * (r.params[k].double() - v.double()) for k, v in take(params, r.cover).items()}
            zero = {k: torch.zeros(params[k].shape, dtype=torch.float64) for k in far}
            params = stepped(params, put(zero, r.cover, far))
        return params


@dataclass(frozen=True)
class ServerAdam(Part):
    r"""FedAdam and FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295): the mean change is the server's gradient.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) \Delta^2 \;\text{ or }\;
        v - (1 - \beta_2) \Delta^2 \mathrm{sign}(v - \Delta^2), \qquad
        \theta \leftarrow \theta + \eta \, m / (\sqrt{v} + \tau)

    Where nobody spoke neither the moments nor the model move.  Statistics of normalisation layers
    and integers are averaged plainly.
    """

    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    yogi: bool = False
    weight: Weight = "samples"

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The moments after these replies."""
        num, den = changes(state, replies, lambda r: weight_of(r, self.weight))
        note = note or {"m": {}, "v": {}}
        out: dict[str, Params] = {"m": dict(note["m"]), "v": dict(note["v"])}
        for k in num:
            if is_statistic(k) or not state.params[k].is_floating_point():
                continue
            spoke = den[k] > 0
            delta = num[k] / torch.where(spoke, den[k], 1.0)
            m = out["m"].get(k, torch.zeros_like(delta))
            v = out["v"].get(k, torch.full_like(delta, self.tau**2))
            square = delta.square()
            grown = (
                v - (1 - self.beta2) * square * (v - square).sign() if self.yogi else torch.lerp(square, v, self.beta2)
            )
            out["m"][k] = torch.where(spoke, torch.lerp(delta, m, self.beta1), m)
            out["v"][k] = torch.where(spoke, grown, v)
        return out

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model, from the moments just learnt."""
        plain = CoverMean(self.weight)(state, replies)
        note = state.notes["merge"]
        spoken = union(r.cover for r in replies)
        out = {}
        for k, p in state.params.items():
            if k not in note["m"]:
                out[k] = plain[k]
                continue
            step = self.lr * note["m"][k] / (note["v"][k].sqrt() + self.tau)
            out[k] = p if k not in spoken else stepped({k: p}, {k: torch.where(spoken[k].dense(), step, 0.0)})[k]
        return out


# ---- what every merge does
def weight_of(reply: Reply, weight: Weight) -> float:
    """How much a reply counts."""
    return 1.0 if weight == "uniform" else reply.weight


def base_of(reply: Reply, state: State) -> Params:
    """What the client was sent, at the coordinates that it speaks of."""
    order = reply.order
    if order is None:
        return take(dict(state.params), reply.cover)
    if order.cover == reply.cover:
        return dict(order.params)
    return take(put(dict(state.params), order.cover, order.params), reply.cover)


def changes(state: State, replies: Sequence[Reply], size: Callable[[Reply], float]) -> tuple[Params, Params]:
    """Of each coordinate, the weighted sum of what clients changed, and the weight of those who spoke; in float64."""
    num: Params = {}
    den: Params = {}
    for r in replies:
        base, n = base_of(r, state), size(r)
        for k, s in r.cover.spans.items():
            if k not in num:
                num[k] = torch.zeros(s.shape, dtype=torch.float64)
                den[k] = torch.zeros(s.shape, dtype=torch.float64)
            num[k][s.index] += n * (r.params[k].double() - base[k].double())
            den[k][s.index] += n
    return num, den


def stepped(params: Params, step: Params) -> Params:
    """The parameters after a float64 step; where it is nothing, not one bit moves."""

    def moved(p: Tensor, d: Tensor) -> Tensor:
        new = p.double() + d
        return torch.where(d == 0, p, (new if p.is_floating_point() else new.round()).to(p.dtype))

    return {k: moved(p, step[k]) if k in step else p for k, p in params.items()}


def union(covers: Any) -> Cover:
    """All that some of them speak of."""
    out = Cover({})
    for c in covers:
        out = out | c
    return out
