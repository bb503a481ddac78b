"""Data that change while a run goes on: who has what, and what the samples are, as pure functions of round and key.

``repartition:every=40``, ``noise:0.3:at=20+label-noise:0.1``: several may be joined by ``+``.  What
a drift draws is named by itself and by how often it has struck, so a run that is resumed, or works
in other processes, sees the same data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..key import Key
from ..schema import chosen
from ..types import Handle
from .changes import Change, Drift, Labels, LeftOut, NewClass
from .dataset import Dataset
from .index import SPLITS, Index, joined
from .senses import LabelNoise, Noise, Rate, Sensor


@dataclass(frozen=True)
class Repartition(Drift):
    """What the chosen clients hold is dealt out among them anew: Mishra and Gupta's V1 to V6, every 10 to 60 rounds.

    Training samples stay training samples, and test samples test samples, whoever has them.
    """

    every: int = field(default=40, kw_only=True)

    exchanges: ClassVar[bool] = True

    def rows(self, change: Change) -> Mapping[int, Mapping[str, Tensor]]:
        """The parts that the run's own partition makes of each side; natural owners change clients whole."""
        if not change.times:
            return {}
        key, clients = change.key.at(change.times), change.clients
        subject = next(iter(signature(change.partition).parameters))
        if subject == "groups":
            order = key.permutation(len(clients)).tolist()
            return {i: change.parts[clients[j]] for i, j in zip(clients, order, strict=True)}
        sides = {s: torch.cat([change.parts[i][s] for i in clients]).unique() for s in SPLITS}
        labels = {s: change.data.y[rows] for s, rows in sides.items()}
        drawn: Any
        if subject == "sides":
            drawn = change.partition(labels, len(clients), key)
        else:
            each = {s: _dealt(change.partition, labels[s], len(clients), key, sides) for s in SPLITS}
            drawn = [{s: each[s][n] for s in SPLITS} for n in range(len(clients))]
        return {i: {s: sides[s][mine[s]] for s in SPLITS} for i, mine in zip(clients, drawn, strict=True)}


def _dealt(
    partition: Callable[..., list[Tensor]], labels: Tensor, n: int, key: Key, sides: Mapping[str, Tensor]
) -> list[Tensor]:
    """One side's rows; the least that each client has is this side's share of it."""
    settings = signature(partition).parameters
    if "least" not in settings:
        return partition(labels, n, key)
    share = len(labels) / sum(len(rows) for rows in sides.values())
    least = max(1, min(int(settings["least"].default * share), len(labels) // n))
    return partition(labels, n, key, least=least)


DRIFTS: Mapping[str, Callable[..., Drift]] = {
    "repartition": Repartition,
    "labels": Labels,
    "new-class": NewClass,
    "left-out": LeftOut,
    "noise": Noise,
    "sensor": Sensor,
    "rate": Rate,
    "label-noise": LabelNoise,
}


def parse(text: str) -> tuple[Drift, ...]:
    """The drifts that a text names."""
    return tuple(chosen(one.strip(), DRIFTS, "drift") for one in re.split(r"\+(?=\s*[a-z])", text) if text)


@dataclass(frozen=True, eq=False)
class Drifting:
    """What these drifts make of the data of these clients."""

    drifts: tuple[Drift, ...]
    clients: tuple[int, ...]
    partition: Callable[..., Any]
    key: Key
    unseen: frozenset[int] = frozenset()
    doubles: bool = False

    @cached_property
    def chosen(self) -> tuple[frozenset[int], ...]:
        """For each drift, the clients that it strikes; who never trains exchanges nothing with others."""
        seen = tuple(i for i in self.clients if i not in self.unseen)
        whom = [seen if d.exchanges else self.clients for d in self.drifts]
        return tuple(frozenset(d.chosen(whom[i], self.key.at(i))) for i, d in enumerate(self.drifts))

    @property
    def touches(self) -> bool:
        """Are samples changed, not only dealt out otherwise?"""
        return any(d.touches for d in self.drifts)

    def check(self, data: Dataset, parts: Index) -> None:
        """Refuse what cannot be, before any work: each drift is tried at its first stroke."""
        for d in self.drifts:
            d.check(data)
        for round in sorted({d.first for d in self.drifts}):
            now = self.parts(data, parts, round)
            for s in SPLITS:
                if not bool(now.sizes(s).all()):
                    raise ValueError(f"after the drift in round {round} a client would have no {s} samples")

    def since(self, round: int) -> int:
        """The last round, up to this one, in which a drift struck."""
        return max((d.since(round) for d in self.drifts), default=0)

    def parts(self, data: Dataset, parts: Index, round: int) -> Index:
        """Who has which rows in this round."""
        for i, d in enumerate(self.drifts):
            mine = tuple(c for c in parts.clients if c in self.chosen[i])
            changed = d.rows(Change(data, parts, mine, d.times(round), self.key.at(i), self.partition))
            if changed:
                new = {s: [changed.get(c, {}).get(s, parts.part(c, s)) for c in parts.clients] for s in SPLITS}
                parts = joined(parts.clients, new)
        return parts

    def samples(self, data: Dataset, x: Tensor, y: Tensor, handle: Handle) -> tuple[Tensor, Tensor]:
        """A client's samples in a round."""
        split = "test" if handle.split == "val" and self.doubles else handle.split
        for i, d in enumerate(self.drifts):
            times = d.times(handle.round)
            if d.touches and times and handle.client in self.chosen[i]:
                x, y = d.samples(data, x, y, split, times, self.key.at(i, "client", handle.client))
        return x, y
