"""Who takes part, by when clients are there; and a merge for replies that come later than their round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cover import Params
from ..fleet import Fleet
from ..key import Key
from ..types import Part, Reply, State
from .merge import changes, stepped


@dataclass(frozen=True)
class LeastAvailable(Part):
    r"""REFL's selection: first those that are the least likely to be there in the next slot, ties at random.

    The slot is :math:`[\mu, 2 \mu]` from now, :math:`\mu \leftarrow (1 - \alpha) D + \alpha \mu` with D what the last
    round took.  Who has taken part rests for ``cooldown`` rounds, as long as there are others.  A prediction is right
    with probability ``accuracy``, and else turned round.
    """

    alpha: float = 0.25
    cooldown: int = 5
    accuracy: float = 0.9

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """When each client last took part, and how long a slot is."""
        note = note or {"last": {}, "slot": 0.0}
        took = max((r.seconds for r in replies if r.round == state.round), default=note["slot"])
        slot = (1 - self.alpha) * took + self.alpha * note["slot"] if note["last"] else took
        return {"last": {**note["last"], **{r.client: r.round for r in replies}}, "slot": slot}

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """The chosen clients, sorted."""
        note = state.notes.get("select") or {"last": {}, "slot": 0.0}
        ids = sorted(fleet.devices)
        luck = dict(zip(ids, key.at("ties").permutation(len(ids)).tolist(), strict=True))

        def rank(i: int) -> tuple[bool, float, int]:
            there = fleet.outlook(i, note["slot"], 2 * note["slot"])
            if key.at("guess", i).uniform() >= self.accuracy:
                there = 1 - there
            return state.round - note["last"].get(i, -math.inf) <= self.cooldown, there, luck[i]

        return sorted(sorted(ids, key=rank)[:n])


@dataclass(frozen=True)
class StaleMean(Part):
    r"""REFL's merge: what clients changed, the less the older it is, and the more it differs from what is fresh.

    .. math:: w_s = \frac{1 - \beta}{1 + \tau_s} + \beta \left( 1 - e^{-\Lambda_s / \Lambda_{max}} \right), \qquad
        \Lambda_s = \lVert \bar u_F - (u_s + n_F \bar u_F) / (n_F + 1) \rVert^2 / \lVert \bar u_F \rVert^2

    Fresh replies weigh 1; weights are divided by their sum.
    """

    beta: float = 0.35

    def weights(self, state: State, replies: Sequence[Reply]) -> list[float]:
        """What each reply weighs, before the division."""
        fresh = [r for r in replies if r.round == state.round]
        far = {(r.client, r.round): self._far(state, fresh, r) for r in replies if r.round < state.round}
        most = max(far.values(), default=0.0)

        def weight(r: Reply) -> float:
            if r.round == state.round:
                return 1.0
            odd = 1 - math.exp(-far[r.client, r.round] / most) if most else 0.0
            return (1 - self.beta) / (1 + state.round - r.round) + self.beta * odd

        return [weight(r) for r in replies]

    def _far(self, state: State, fresh: Sequence[Reply], late: Reply) -> float:
        """How far a late change would move the mean of the fresh ones, by that mean's length."""
        if not fresh:
            return 0.0
        mean, n = changes(state, fresh, lambda r: 1.0)
        mine, spoke = changes(state, [late], lambda r: 1.0)
        mean = {k: v / torch.where(n[k] > 0, n[k], 1.0) for k, v in mean.items()}
        gap = sum(float((v - mean.get(k, torch.zeros_like(v)))[spoke[k] > 0].square().sum()) for k, v in mine.items())
        size = sum(float(v.square().sum()) for v in mean.values())
        return gap / (len(fresh) + 1) ** 2 / size if size else 0.0

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        weight = {(r.client, r.round): w for r, w in zip(replies, self.weights(state, replies), strict=True)}
        num, den = changes(state, replies, lambda r: weight[r.client, r.round])
        return stepped(dict(state.params), {k: v / torch.where(den[k] > 0, den[k], 1.0) for k, v in num.items()})
