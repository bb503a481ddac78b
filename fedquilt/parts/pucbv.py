"""FedLPS's bandit over ratios, and the send that tells each client its ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pvariance
from typing import Any, ClassVar

from ..cover import Cover
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..types import Brief, Json, Part, Reply, State
from .ratio import Given, sending

Arm = tuple[float, float, list[float]]  # from, to, rewards


@dataclass(frozen=True)
class PUCBV(Given):
    r"""P-UCBV: intervals of ratios, split at every ratio that was used; each child has its parent's rewards.

    .. math::
        j^* = \arg\max_j \bar G_j + \sqrt{\frac{\rho (v_j + 2) \ln(1 + \xi \psi)}{4 (h_j + 1)}}, \qquad
        G = \frac{U(a) - U(a')}{T}, \qquad U(x) = 10 - \frac{20}{1 + e^{0.35 x}}

    with h rewards of mean and variance v in an interval, a and a' the client's accuracy on its training
    data now and the time before (before the first time, that of the initial model), T the seconds that
    the round took it, and :math:`\psi = \xi / I^2` for I intervals.  The next ratio is uniform in the best
    interval, and never above what the device carries: only intervals that begin below that are chosen from, and are
    drawn from up to there.  (Were ratios cut after the choice, what lies above would never be rewarded, ever be
    new, and ever be chosen: a weak device would do without the bandit.)  Where accuracy fell by more than ``fall``
    points the ratios below are given up.

    An accuracy is a share, ``full`` = 1, as in the released code.  The paper does not say; of per cent U is flat from
    20 on, and hardly a reward would be left.

    The paper's logarithm is of :math:`\xi \psi \epsilon` with an :math:`\epsilon` that every round halves: negative
    after two rounds, and its root not a number.  Here :math:`\epsilon` stays 1 and the 1 is added, so that the bonus
    shrinks as intervals are split and is never below 0.  Rewards count against the client's greatest so far:
    else the unit of time would say how much is explored.  An interval that was never tried counts as the mean of
    all rewards, of which the paper says nothing: as 0 it would hardly ever be tried.  ``horizon`` is :math:`\xi`,
    how many rounds a client is to expect; ``low`` is the smallest ratio.
    """

    asks: ClassVar[tuple[str, ...]] = ("initial_accuracy", "train_accuracy")

    intervals: int = 5
    low: float = 1 / 16
    rho: float = 0.5
    horizon: float = 10.0
    fall: float = 5.0
    full: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.intervals < 1 or not 0 < self.low < 1 or min(self.horizon, self.full) <= 0 or self.rho < 0:
            raise ValueError("intervals is 1 or more, low between 0 and 1, horizon and full above 0, rho 0 or more")

    def __call__(self, note: Any, client: int, device: Device, key: Key) -> float:
        """The share of the units that are kept."""
        return self.drawn((note or {}).get(str(client)), key, device.width)

    def drawn(self, known: Mapping[str, Any] | None, key: Key, most: float = 1.0) -> float:
        """A ratio of the best interval that begins below ``most``, and is drawn from up to there; of equals any."""
        arms = self.arms(known)
        able = [(s, arm) for s, arm in zip(self.scores(arms), arms, strict=True) if arm[0] < most]
        best = [arm for s, arm in able if s == max(s for s, _ in able)]
        if not best:
            return most
        low, high, _ = best[int(key.at("arm").uniform() * len(best))]
        return low + (min(high, most) - low) * key.at("ratio").uniform()

    def arms(self, known: Mapping[str, Any] | None) -> list[Arm]:
        """The intervals with their rewards."""
        if known:
            return [(low, high, list(rewards)) for low, high, rewards in known["arms"]]
        cuts = [self.low + (1 - self.low) * i / self.intervals for i in range(self.intervals + 1)]
        return [(low, high, []) for low, high in pairwise(cuts)]

    def scores(self, arms: Sequence[Arm]) -> list[float]:
        """What each interval promises."""
        spread = math.log1p(self.horizon * self.horizon / len(arms) ** 2)
        every = [r for _, _, rewards in arms for r in rewards]
        unit = max(map(abs, every), default=0.0) or 1.0
        unknown = fmean(every) / unit if every else 0.0

        def score(rewards: Sequence[float]) -> float:
            own = [r / unit for r in rewards]
            mean, var = (fmean(own), pvariance(own)) if own else (unknown, 0.0)
            return mean + math.sqrt(self.rho * (var + 2) * spread / (4 * (len(own) + 1)))

        return [score(rewards) for _, _, rewards in arms]

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Each client's intervals after this round."""
        out = dict(note or {})
        for r in replies:
            if r.order is None:
                continue
            known = out.get(str(r.client))
            said = r.order.scalars.get("ratio")
            if said is None:
                key = sending(r.order.seed, r.order.round, r.client)
                said = self(note, r.client, fleet.devices[r.client], key)
            used = float(said)
            now = 100 * r.metrics["train_accuracy"]
            before = known["accuracy"] if known else 100 * r.metrics["initial_accuracy"]
            gained = utility(now * self.full / 100) - utility(before * self.full / 100)
            reward = gained / max(r.seconds, 1e-9)
            arms = self.split(self.arms(known), used, reward, now - before < -self.fall)
            out[str(r.client)] = {
                "arms": [list(a) for a in arms],
                "accuracy": now,
                "ratio": used,
            }
        return out

    def split(self, arms: Sequence[Arm], ratio: float, reward: float, fell: bool) -> list[Arm]:
        """The intervals after a reward for a ratio; those below it are gone if accuracy fell."""
        out: list[Arm] = []
        at = max((i for i, (low, _, _) in enumerate(arms) if low <= ratio), default=0)
        for i, (low, high, rewards) in enumerate(arms):
            if i != at:
                out.append((low, high, rewards))
            elif low < ratio < high:
                out += [] if fell else [(low, ratio, [*rewards, reward])]
                out.append((ratio, high, [*rewards, reward]))
            else:
                out.append((low, high, [*rewards, reward]))
        return out

    def tell(self, note: Any) -> Mapping[str, Json]:
        """The mean of the ratios that clients used last."""
        return {"ratio": fmean(c["ratio"] for c in note.values())} if note else {}


def utility(accuracy: float) -> float:
    """FedLPS's utility of an accuracy: steepest at 0, at most 10."""
    return 10 - 20 / (1 + math.exp(0.35 * accuracy))


@dataclass(frozen=True)
class Rationed(Part):
    """The whole model, and the share of it that the client is to train: which units, it chooses itself."""

    ratio: Given = field(default_factory=Given)

    @property
    def asks(self) -> tuple[str, ...]:  # type: ignore[override]  # those of the ratio
        """What the ratio learns from."""
        return getattr(self.ratio, "asks", ())

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """All of it."""
        return model.whole

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """The ratio of this round, no higher than the device carries."""
        return Brief({"ratio": min(self.ratio(state.notes.get("send"), client, device, key), device.width)})

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """What the ratio learns."""
        return self.ratio.learn(note, state, replies, fleet)

    def tell(self, note: Any) -> Mapping[str, Json]:
        """What the ratio has to say."""
        return self.ratio.tell(note) if isinstance(self.ratio, PUCBV) else {}
