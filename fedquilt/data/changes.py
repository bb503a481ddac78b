"""What a drift is: when it strikes, and whom; and those that change who has which rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..key import Key
from .dataset import Dataset
from .index import Index


@dataclass(frozen=True, eq=False)
class Change:
    """What a drift of rows sees: who has what before it, whom it strikes, and how often it has by now."""

    data: Dataset
    parts: Index
    clients: tuple[int, ...]
    times: int
    key: Key
    partition: Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A change that strikes a ``share`` of the clients ``at`` a round, and again ``every`` so many rounds.

    With neither it has struck before the first round; with ``every`` alone, first after so many.
    """

    share: float = 1.0
    at: int = 0
    every: int = 0

    touches: ClassVar[bool] = False  # does it change samples?
    exchanges: ClassVar[bool] = False  # do clients get samples of one another?

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share, of the clients, is above 0 and at most 1, not {self.share:g}")
        if self.at < 0 or self.every < 0:
            raise ValueError(f"at and every are rounds, from 0: not {self.at} and {self.every}")

    # ---- when and whom
    @property
    def first(self) -> int:
        """The round of its first stroke."""
        return self.at or self.every

    def times(self, round: int) -> int:
        """How often it has struck when a round begins."""
        if round < self.first:
            return 0
        return 1 + ((round - self.first) // self.every if self.every else 0)

    def since(self, round: int) -> int:
        """The round of its last stroke, up to this round (0 if there was none)."""
        return self.first + (self.times(round) - 1) * self.every if self.times(round) else 0

    def chosen(self, clients: tuple[int, ...], key: Key) -> list[int]:
        """Whom it strikes: always the same clients."""
        n = max(1, int(self.share * len(clients) + 0.5))
        return sorted(clients[i] for i in key.at("chosen").permutation(len(clients))[:n].tolist())

    # ---- what it does
    def check(self, data: Dataset) -> None:
        """Refuse data that it cannot change."""

    def rows(self, change: Change) -> Mapping[int, Mapping[str, Tensor]]:
        """The new parts of those whom it changes."""
        return {}

    def samples(self, data: Dataset, x: Tensor, y: Tensor, split: str, times: int, key: Key) -> tuple[Tensor, Tensor]:
        """A client's new samples."""
        return x, y


# ---- who has which rows
def labelled(data: Dataset, what: str) -> None:
    """Refuse data without classes."""
    if data.y.dim() != 1 or data.y.is_floating_point():
        raise ValueError(f"{what} goes by class: {data.name} has not one whole-numbered label a sample")


def _one_of(data: Dataset, label: int) -> None:
    """Refuse a label that is no class; one below 0 stands for one that is drawn."""
    if label >= data.classes:
        raise ValueError(
            f"label {label} is not one of the {data.classes} classes of {data.name} (0 to {data.classes - 1})"
        )


@dataclass(frozen=True)
class Labels(Drift):
    """Label shift: each client's classes are thinned by weights drawn from Dir(alpha).

    The heaviest class is kept whole, the others in proportion, on each side alike.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha is a number above 0, not {self.alpha:g}")

    def check(self, data: Dataset) -> None:
        """It needs classes."""
        labelled(data, "a shift of labels")

    def rows(self, change: Change) -> Mapping[int, Mapping[str, Tensor]]:
        """So much of each class."""
        if not change.times:
            return {}
        return {i: self._thinned(change, i, change.key.at(change.times, i)) for i in change.clients}

    def _thinned(self, change: Change, client: int, key: Key) -> dict[str, Tensor]:
        y, parts = change.data.y, change.parts[client]
        held = torch.cat([y[rows] for rows in parts.values()]).unique().tolist()
        weights = key.at("weights").numpy().dirichlet([self.alpha] * len(held))
        out = {}
        for s, rows in parts.items():
            kept = []
            for c, w in zip(held, weights / weights.max(), strict=True):
                mine = rows[y[rows] == c]
                kept.append(mine[key.at("class", c).permutation(len(mine))[: int(w * len(mine) + 0.5)]])
            some = torch.cat(kept).sort().values
            out[s] = some if len(some) else rows[:1]
        return out


@dataclass(frozen=True)
class NewClass(Drift):
    """A class that a client has is not there before the drift: ``label``, or one drawn for each client.

    A part that would be empty without it keeps it.
    """

    label: int = -1
    share: float = field(default=0.5, kw_only=True)
    at: int = field(default=20, kw_only=True)

    def check(self, data: Dataset) -> None:
        """It needs classes."""
        labelled(data, "a new class")
        _one_of(data, self.label)

    def rows(self, change: Change) -> Mapping[int, Mapping[str, Tensor]]:
        """All but the class that is yet to come."""
        if change.times:
            return {}
        y, out = change.data.y, {}
        for i in change.clients:
            held = y[change.parts[i]["train"]].unique()
            drawn = int(held[int(change.key.at("class", i).uniform() * len(held))])
            out[i] = {
                s: _without(rows, y, self.label if self.label >= 0 else drawn) for s, rows in change.parts[i].items()
            }
        return out


@dataclass(frozen=True)
class LeftOut(Drift):
    """One class is left out of training (and validation) and stays in the test parts: ``label``, or one drawn for all.

    A part that would be empty without it keeps it.
    """

    label: int = -1

    def check(self, data: Dataset) -> None:
        """It needs classes."""
        labelled(data, "a class that is left out")
        _one_of(data, self.label)

    def rows(self, change: Change) -> Mapping[int, Mapping[str, Tensor]]:
        """Train and validation parts without the class."""
        if not change.times:
            return {}
        drawn = int(change.key.at("class").uniform() * change.data.classes)
        label = self.label if self.label >= 0 else drawn
        sides = ("train", "val")
        return {i: {s: _without(change.parts[i][s], change.data.y, label) for s in sides} for i in change.clients}


def _without(rows: Tensor, y: Tensor, label: int) -> Tensor:
    rest = rows[y[rows] != label]
    return rest if len(rest) else rows
