"""Who takes part, by what is known of each client's loss and speed; and partial work by the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..fleet import Fleet
from ..key import Key
from ..types import Brief, Part, Reply, State
from .merge import base_of
from .timing import drawn, nbytes, quantile, spent

Known = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class PowerOfChoice(Part):
    """Of so many times more ``candidates``, drawn by their numbers of samples, those whose last loss was largest.

    Who has not been heard of counts as infinitely bad.
    """

    candidates: float = 2.0

    def __post_init__(self) -> None:
        if not self.candidates >= 1:
            raise ValueError(f"candidates are as many as are needed or more: a number from 1, not {self.candidates}")

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Each client's last loss."""
        return {**(note or {}), **{r.client: r.metrics["loss"] for r in replies}}

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """The chosen clients, sorted."""
        ids, losses = sorted(fleet.devices), state.notes.get("select") or {}
        several = math.ceil(self.candidates * n - 1e-9)
        among = drawn(ids, [fleet.sizes.get(i, 1) for i in ids], several, key)
        return sorted(sorted(among, key=lambda i: -losses.get(i, math.inf))[:n])


@dataclass(frozen=True)
class Utility(Part):
    r"""Oort's selection: exploit those whose data and speed have been worth most, explore others.

    .. math:: U_i = n_i \sqrt{\tfrac{1}{n_i} \sum_x \ell(x)^2}, \qquad
        S_i = \Big( \hat U_i + \sqrt{0.1 \ln R / R_i} \Big) \cdot (T / t_i)^{\alpha \, [t_i > T]}

    with :math:`\hat U` clipped at the ``clip`` quantile and brought to [0, 1], R the round and R_i the
    client's last.  The share ``explore`` of a cohort (times ``decay`` each round, ``least`` at least) has
    never been tried, and is drawn by speed; the rest is drawn by S among those with ``cut`` times the S of
    the last that would get in.  T is the quantile ``deadline`` of known times, and goes up by
    ``pace`` when ``window`` rounds were worth no more than the ``window`` before.  With ``most`` above 0 a
    client that has taken part so often rests, as long as there are others.
    """

    asks: ClassVar[tuple[str, ...]] = ("rms_loss",)

    explore: float = 0.9
    decay: float = 0.98
    least: float = 0.2
    alpha: float = 2.0
    cut: float = 0.95
    clip: float = 0.95
    deadline: float = 0.3
    pace: float = 0.05
    window: int = 20
    most: int = 0

    def __post_init__(self) -> None:
        for name in ("explore", "decay", "least", "cut", "clip", "deadline", "pace"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, not {getattr(self, name)}")

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """What each client was worth and how long it took; the worth of the last rounds; the deadline's quantile."""
        note = note or {"clients": {}, "worth": [], "deadline": self.deadline}
        clients = dict(note["clients"])
        for r in replies:
            times = 1 + (clients[r.client]["times"] if r.client in clients else 0)
            worth = r.weight * r.metrics["rms_loss"]
            clients[r.client] = {"worth": worth, "seconds": r.seconds, "last": state.round + 1, "times": times}
        past = [*note["worth"], sum(clients[r.client]["worth"] for r in replies)]
        deadline, w = note["deadline"], self.window
        if len(past) == 2 * w:
            if sum(past[w:]) <= sum(past[:w]):
                deadline = min(1.0, deadline + self.pace)
            past = past[w:]
        return {"clients": clients, "worth": past, "deadline": deadline}

    def scores(self, known: Known, round: int, deadline: float) -> dict[int, float]:
        """S of each known client."""
        worth = [c["worth"] for c in known.values()]
        low, high, late = (
            min(worth),
            quantile(worth, self.clip),
            quantile([c["seconds"] for c in known.values()], deadline),
        )
        out = {}
        for i, c in known.items():
            value = (min(c["worth"], high) - low) / (high - low) if high > low else 1.0
            value += math.sqrt(0.1 * math.log(round) / c["last"])
            out[i] = value * (late / c["seconds"]) ** self.alpha if c["seconds"] > late else value
        return out

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """The chosen clients, sorted."""
        note = state.notes.get("select") or {"clients": {}, "deadline": self.deadline}
        known = {i: note["clients"][i] for i in sorted(fleet.devices) if i in note["clients"]}
        new = [i for i in sorted(fleet.devices) if i not in known]
        fresh = {i: c for i, c in known.items() if not self.most or c["times"] < self.most}
        known = fresh if len(fresh) + len(new) >= n else known
        share = max(self.least, self.explore * self.decay**state.round)
        more = min(len(new), max(n - len(known), round(share * n)))
        chosen = drawn(new, [fleet.devices[i].flops for i in new], more, key.at("explore"))
        if known and more < n:
            scores = self.scores(known, state.round + 1, note["deadline"])
            last = sorted(scores.values(), reverse=True)[min(n - more, len(scores)) - 1]
            good = [i for i, s in scores.items() if s >= self.cut * last]
            chosen += drawn(good, [scores[i] for i in good], n - more, key.at("exploit"))
        return sorted(chosen)


@dataclass(frozen=True)
class Pyramid(Utility):
    r"""PyramidFL: Oort's selection; those chosen are told how much to send and how long to train.

    Rank r of K by :math:`n_i \sqrt{\text{mean} \Delta_i^2}` has each of its tensors stay behind with probability
    :math:`\rho = low + r (high - low) / K`; who would be ready before the last trains on, ``beta`` of the time
    that it would wait, and up to ``longest`` times longer.  The base work has so many ``epochs``.  The last is the
    slowest of those who are waited for: where ``over`` times the cohort is asked, of the fastest.  A client's time, for
    the selection too, is that of the base work and of the whole model: what it was told to add does not make it slow.
    """

    low: float = 0.1
    high: float = 0.6
    beta: float = 1.0
    longest: float = 10.0
    epochs: int = 5
    over: float = 1.0

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Oort's note, with each client's last change, and its seconds of base work, down and up."""
        new = super().learn(note, state, replies, fleet)
        clients = dict(new["clients"])
        for r in replies:
            device, base = fleet.devices[r.client], base_of(r, state)
            square = sum(float((r.params[k].double() - v.double()).square().sum()) for k, v in base.items())
            count = sum(v.numel() for v in base.values())
            sent = nbytes(r.order.params if r.order else dict(state.params))
            times = 1.0 if r.order is None else float(r.order.scalars.get("times", 1.0))
            work, down, up = spent(r, device)[0] / times, sent / device.down, sent / device.up
            clients[r.client] = {
                **clients[r.client],
                "change": r.weight * math.sqrt(square / max(count, 1)),
                "seconds": work + down + up,
                "work": work,
                "down": down,
                "up": up,
            }
        return {**new, "clients": clients}

    def together(self, state: State, cohort: Fleet) -> Mapping[int, Brief]:
        """Each one's share to leave out, and how many times as long it trains."""
        clients = (state.notes.get("select") or {"clients": {}})["clients"]
        known = {i: clients[i] for i in sorted(cohort.devices) if i in clients}
        ranked = sorted(cohort.devices, key=lambda i: (-known[i]["change"] if i in known else -math.inf, i))
        drop = {i: self.low + r * (self.high - self.low) / len(ranked) for r, i in enumerate(ranked)}
        ends = {i: c["work"] + c["down"] + (1 - drop[i]) * c["up"] for i, c in known.items()}
        first = sorted(known, key=lambda i: known[i]["work"] + known[i]["down"] + known[i]["up"])
        waited = first[: max(1, math.floor(len(first) / self.over + 1e-9))]
        end = max((ends[i] for i in waited), default=0.0)
        out = {}
        for i in cohort.devices:
            times = 1.0
            if i in known and known[i]["work"] > 0:
                spare = self.beta * max(end - ends[i], 0.0)
                times += min(self.longest, math.floor(spare / (known[i]["work"] / self.epochs)) / self.epochs)
            out[i] = Brief({"drop": drop[i], "times": times})
        return out
