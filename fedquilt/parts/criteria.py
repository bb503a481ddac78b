"""Who takes part for good: those whose presence, data, devices and links suit federated training best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..fleet import Device, Fleet
from ..key import Key
from ..types import Part, Reply, State


@dataclass(frozen=True)
class ByCriteria(Part):
    """Mishra and Gupta's participants (section 5): a ``share`` of the clients, chosen once, who all take part since.

    One after another, whoever has the most points then, of equals by chance.  A point, or the part of one, is for
    being there (``available``: the share of the next ``horizon`` seconds), for holding every class (``complete``: the
    share of the most that somebody declares), for a device of which few have been chosen yet (``diverse``), for a
    network that nobody chosen is on (``distinct``), and for being ``plugged`` in.  Without any it is a draw.
    A schedule that wants fewer in a round draws them from the participants.
    """

    share: float = 0.5
    available: bool = True
    complete: bool = True
    diverse: bool = True
    distinct: bool = True
    plugged: bool = True
    horizon: float = 86400.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is of the clients, above 0 and at most 1, not {self.share}")

    def among(self, fleet: Fleet, least: int = 1) -> list[int]:
        """The participants that would be chosen of those who are there, sorted; ``least`` at least, if there are."""
        ids = sorted(fleet.without(fleet.away).devices)
        luck = (fleet.key or Key(0)).at("criteria").permutation(len(ids)).tolist()
        left = [ids[i] for i in luck]
        fixed = {i: self._points(i, fleet) for i in left}
        counts = dict.fromkeys((fleet.devices[i].tier for i in left), 0)
        networks: set[str] = set()
        chosen: list[int] = []
        for _ in range(min(len(left), max(least, int(self.share * len(fleet) + 1e-9)))):
            fewest = min(counts[fleet.devices[i].tier] for i in left)
            points = {i: fixed[i] + self._beside(fleet.devices[i], counts, fewest, networks) for i in left}
            best = max(left, key=points.__getitem__)
            left.remove(best)
            chosen.append(best)
            counts[fleet.devices[best].tier] += 1
            networks |= {fleet.devices[best].network} - {""}
        return sorted(chosen)

    def _points(self, i: int, fleet: Fleet) -> float:
        """Those that do not depend on who else is chosen."""
        most = max(fleet.classes.values(), default=0)
        held = fleet.classes.get(i, most) / most if most else 1.0
        here = fleet.outlook(i, 0.0, self.horizon) if self.available else 0.0
        return here + held * self.complete + (self.plugged and fleet.devices[i].plugged)

    def _beside(self, device: Device, counts: Mapping[str, int], fewest: int, networks: set[str]) -> float:
        """Those that do: is it of the rarest kind, and on a network of its own?"""
        rare = self.diverse and counts[device.tier] == fewest
        return float(rare) + (self.distinct and device.network not in networks)

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Who was chosen in the first round that came to something."""
        return note or self.among(fleet)

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """All participants that are free; of more than are wanted a draw, sorted."""
        chosen = state.notes.get("select") or self.among(fleet, n)  # who is away is no longer in the fleet
        free = [i for i in chosen if i in fleet.devices]
        return sorted(free[j] for j in key.permutation(len(free))[:n].tolist())
