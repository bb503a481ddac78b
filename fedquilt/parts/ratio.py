"""How much of the model a client trains: ratio parts, which a part that sends asks in each round.

A ratio is a pure function of its note about the client, of the round and of a key; so which ratio an
order had can be said again when its reply is learnt from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..fleet import Device, Fleet
from ..key import Key
from ..types import Reply, State

Note = Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """The device's width, or the same ``share`` for all."""

    share: float | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share is above 0 and at most 1, not {self.share}")

    @property
    def by_device(self) -> bool:
        """Is it what the device carries?"""
        return self.share is None

    def __call__(self, note: Any, client: int, device: Device, key: Key) -> float:
        """The share of the units that are kept."""
        return device.width if self.share is None else self.share

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Nothing."""
        return note


@dataclass(frozen=True)
class EUCB(Given):
    r"""FedMP's bandit over drop ratios: a tree of intervals of [0, 1), of which the most promising one is drawn from.

    .. math:: j^* = \arg\max_j \bar R_j + \sqrt{2 \ln \textstyle\sum_i N_i / N_j}, \qquad
        N_j = \sum_s \lambda^{k - s} 1[\alpha_s \in P_j], \qquad
        R = \frac{\Delta L}{\max(\epsilon, |T_i - \bar T| / \bar T)}

    with discounted counts and means, the decrease of the cohort's mean loss, and the time that the client took against
    the cohort's mean.  The interval that was drawn from is split at the draw while it is wider than ``narrow``.
    ``most`` bounds what may be dropped.  ``share`` fixes what is kept and leaves the bandit out.
    """

    discount: float = 0.9
    narrow: float = 0.05
    most: float = 1.0
    floor: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.discount <= 1 and self.narrow > 0 and 0 < self.most <= 1 and self.floor > 0):
            raise ValueError("discount and most are above 0 and at most 1, narrow and floor above 0")

    @property
    def by_device(self) -> bool:
        """It asks for no more than time."""
        return False

    def drop(self, arms: Note | None, key: Key) -> float:
        """The drop ratio of the next round, from what is known of the client's arms."""
        low, high = self.best(arms)
        return low + (high - low) * key.at("arm").uniform()

    def best(self, arms: Note | None) -> tuple[float, float]:
        """The interval of the greatest bound; of those never drawn from the first."""
        cuts, pulls = (arms["cuts"], arms["pulls"]) if arms else ([0.0, self.most], [])
        weights = [self.discount ** (len(pulls) - 1 - s) for s in range(len(pulls))]
        counts, bounds = [], []
        for low, high in pairwise(cuts):
            mine = [w for w, (a, _) in zip(weights, pulls, strict=True) if low <= a < high]
            paid = sum(w * r for w, (a, r) in zip(weights, pulls, strict=True) if low <= a < high)
            counts.append((sum(mine), paid))
        total = max(sum(n for n, _ in counts), 1.0)
        for n, paid in counts:
            bounds.append(paid / n + math.sqrt(2 * math.log(total) / n) if n > 0 else math.inf)
        at = bounds.index(max(bounds))
        return cuts[at], cuts[at + 1]

    def told(self, arms: Note | None, drop: float, reward: float) -> Note:
        """The arms after a reward for a drop ratio."""
        cuts, pulls = (list(arms["cuts"]), list(arms["pulls"])) if arms else ([0.0, self.most], [])
        low = max(c for c in cuts[:-1] if c <= drop)
        high = cuts[cuts.index(low) + 1]
        if high - low > self.narrow and low < drop:
            cuts.insert(cuts.index(high), drop)
        return {"cuts": cuts, "pulls": [*pulls, [drop, reward]]}

    def __call__(self, note: Any, client: int, device: Device, key: Key) -> float:
        """The share of the units that are kept."""
        arms = (note or {"arms": {}})["arms"].get(str(client))
        return self.share if self.share is not None else 1 - self.drop(arms, key)

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Each client's arms after this round, and the cohort's loss."""
        asked = [(r, r.order) for r in replies if r.order is not None]
        if not asked or self.share is not None:
            return note
        note = note or {"arms": {}, "loss": None}
        size = sum(r.weight for r, _ in asked)
        loss = sum(r.weight * r.metrics["loss"] for r, _ in asked) / size
        mean = sum(r.seconds for r, _ in asked) / len(asked)
        gained = 0.0 if note["loss"] is None else note["loss"] - loss
        arms = dict(note["arms"])
        for r, order in asked:
            off = abs(r.seconds - mean) / mean if mean > 0 else 0.0
            drop = self.drop(arms.get(str(r.client)), sending(order.seed, order.round, r.client))
            arms[str(r.client)] = self.told(arms.get(str(r.client)), drop, gained / max(self.floor, off))
        return {"arms": arms, "loss": loss}


def sending(seed: int, round: int, client: int) -> Key:
    """The key with which a part that sends was called for an order."""
    return Key(seed).at(round, "send", client)
