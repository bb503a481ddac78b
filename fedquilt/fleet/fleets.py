"""A fleet: every client's device, who is there now, and what becomes of an order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..key import Key
from .devices import PROFILES, Device
from .presence import Always, Availability, Stragglers, chance

By = Literal["random", "size", "inverse-size"]

ADRENO_630 = 727e9  # FLOP/s of the best device of FedLPS; its code's links are those of the profile phone-high
LOOKS = 16  # into a stretch of the future
LEVELS: Mapping[str, tuple[float, ...]] = {
    "low": (0.5, 1.0),
    "median": (0.25, 0.5, 1.0),
    "high": (0.0625, 0.125, 0.25, 0.5, 1.0),
}


@dataclass(frozen=True)
class Fate:
    """What becomes of an order: does its reply never come, and how many times as long does it take?"""

    dropped: bool = False
    slowdown: float = 1.0


@dataclass(frozen=True)
class Fleet:
    """Every client's device, and how many training samples each client has declared.

    ``classes`` is how many classes each client has declared to hold, where somebody asks for that.
    With ``levels`` each client's device is drawn again from them in every round.  ``present`` says
    when a client is there, ``dropout`` how likely a client that has started never answers,
    ``away`` who is not there now: an order goes to nobody of them.  ``round``, ``clock`` and ``key``
    say when now is, where :meth:`now` made it.
    """

    devices: Mapping[int, Device]
    sizes: Mapping[int, int] = field(default_factory=dict)
    levels: tuple[Device, ...] = ()
    present: Availability = Always()
    dropout: float = 0.0
    stragglers: Stragglers = Stragglers()
    away: frozenset[int] = frozenset()
    round: int = 0
    clock: float = 0.0
    key: Key | None = None
    classes: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout is a share of the orders, from 0 to 1, not {self.dropout}")

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def widths(self) -> list[float]:
        """Every width that a device may have, in this round or another."""
        return sorted({d.width for d in (*self.devices.values(), *self.levels)})

    def only(self, ids: Collection[int]) -> Fleet:
        """The same fleet, these clients only."""
        return replace(self, devices={i: self.devices[i] for i in sorted(ids) if i in self.devices})

    def without(self, ids: Collection[int]) -> Fleet:
        """The same fleet, less these clients."""
        if not (gone := self.devices.keys() & ids):
            return self
        left = dict(self.devices)  # and not one by one: of many clients few are gone, in each round
        for i in gone:
            del left[i]
        return replace(self, devices=left)

    # ---- what changes over time: pure functions of the round, the virtual time and the fleet's key
    def drawn(self, round: int, key: Key) -> Fleet:
        """The fleet with the devices of this round."""
        if not self.levels:
            return self
        return replace(self, devices={i: self.device(i, round, key) for i in self.devices})

    def device(self, client: int, round: int, key: Key) -> Device:
        """A client's device in this round."""
        if not self.levels:
            return self.devices[client]
        return self.levels[int(len(self.levels) * chance(key.at("level", round, client)))]

    def now(self, round: int, clock: float, key: Key) -> Fleet:
        """The fleet with the devices of this round, and who of them is away."""
        fleet = self.drawn(round, key)
        here = key.at("present")
        asked = {} if type(self.present) is Always else fleet.devices
        away = (i for i, d in asked.items() if not self.present(i, d, round, clock, here))
        return replace(fleet, away=frozenset(away), round=round, clock=clock, key=key)

    def outlook(self, client: int, after: float, until: float) -> float:
        """The share of the time between so many seconds from now for which a client will be there (the next round)."""
        if self.key is None:
            return 1.0
        device, here = self.devices[client], self.key.at("present")
        times = (self.clock + after + (until - after) * i / LOOKS for i in range(LOOKS))
        return sum(self.present(client, device, self.round + 1, t, here) for t in times) / LOOKS

    def wakes(self, clock: float, key: Key) -> float:
        """The first time, not before ``clock``, at which somebody may be there."""
        here = key.at("present")
        return min((self.present.next(i, d, clock, here) for i, d in self.devices.items()), default=float("inf"))

    def fate(self, client: int, round: int, key: Key) -> Fate:
        """What becomes of the order that a client is given in this round."""
        dropped = self.dropout > 0 and chance(key.at("drop", round, client)) < self.dropout
        return Fate(dropped, self.stragglers(client, round, key.at("slow")))


# ---- ways to make one
def dealt(sizes: Mapping[int, int], classes: int, by: By, key: Key) -> dict[int, int]:
    """A class for each client, all as large as one another: at random, or by how much data each has."""
    ids = sorted(sizes)
    if by == "random":
        ids = [ids[j] for j in key.permutation(len(ids)).tolist()]
    else:
        ids.sort(key=lambda i: sizes[i], reverse=by == "inverse-size")
    return dict(sorted((i, place * classes // len(ids)) for place, i in enumerate(ids)))


@dataclass(frozen=True)
class Tiers:
    """Clients spread evenly over ``widths``, independent of how much data they have, unless ``by`` says otherwise.

    FedSPU's and FjORD's clusters.  Speed and memory go with the width squared, as the cost of a
    sub-model does.  ``by="size"`` gives those with more data the greater widths, ``inverse-size``
    the smaller.  With ``dynamic`` each client's width is drawn again in every round.
    """

    widths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    by: By = "random"
    dynamic: bool = False

    def __post_init__(self) -> None:
        if not self.widths:
            raise ValueError("widths is empty: a fleet has one tier at least, such as 1.0")
        _fixed(self.by, self.dynamic)
        self.kinds()

    def kinds(self) -> tuple[Device, ...]:
        """One device for each width."""
        return tuple(Device(width=w, flops=1e9 * w * w, memory=1e9 * w * w, tier=f"{w:g}") for w in self.widths)

    def __call__(self, sizes: Mapping[int, int], key: Key) -> Fleet:
        """The fleet of these clients."""
        kinds = self.kinds()
        devices = {i: kinds[c] for i, c in dealt(sizes, len(kinds), self.by, key.at("tiers")).items()}
        return Fleet(devices, dict(sizes), kinds if self.dynamic else ())


@dataclass(frozen=True)
class Levels:
    """FedLPS's capability levels: each client's is drawn from those of ``level``, all as likely.

    low: 1/2, 1; median: 1/4, 1/2, 1; high: 1/16, 1/8, 1/4, 1/2, 1.  A level z has z times the 727
    GFLOP/s of an Adreno 630; width and memory are z as well.  With ``dynamic`` it is drawn again in
    every round, as for the paper's Table I.  ``by`` as in :class:`Tiers`.
    """

    level: Literal["low", "median", "high"] = "high"
    dynamic: bool = False
    by: By = "random"

    def __post_init__(self) -> None:
        _fixed(self.by, self.dynamic)

    def kinds(self) -> tuple[Device, ...]:
        """One device for each level."""
        best = PROFILES["phone-high"]
        source = "FedLPS (Xue et al.): z x 727 GFLOP/s, in its code 110.6 MB/s down, 14.0 MB/s up; the rest: assumed"
        return tuple(
            replace(best, width=z, flops=z * ADRENO_630, memory=z * best.memory, tier=f"{z:g}", source=source)
            for z in LEVELS[self.level]
        )

    def __call__(self, sizes: Mapping[int, int], key: Key) -> Fleet:
        """The fleet of these clients."""
        kinds, n = self.kinds(), len(LEVELS[self.level])
        if self.by == "random":
            devices = {i: kinds[int(n * chance(key.at("levels", i)))] for i in sorted(sizes)}
        else:
            devices = {i: kinds[c] for i, c in dealt(sizes, n, self.by, key).items()}
        return Fleet(devices, dict(sizes), kinds if self.dynamic else ())


@dataclass(frozen=True)
class Profiles:
    """Clients spread evenly over named devices; those of each are spread over ``widths``, if any are given.

    So FedSPU's own testbed is ``profiles:jetson-nano:0.2,0.4,0.6,0.8,1``.
    """

    names: tuple[str, ...] = ("phone-low", "phone-middle", "phone-high")
    widths: tuple[float, ...] = ()
    by: By = "random"

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in PROFILES:
                raise ValueError(f"no device is called {name!r}; there are {', '.join(PROFILES)}")
        if not self.names:
            raise ValueError("names is empty: a fleet has one kind of device at least")
        self.kinds()

    def kinds(self) -> tuple[Device, ...]:
        """One device for each name and width."""
        chosen = [PROFILES[name] for name in self.names]
        if not self.widths:
            return tuple(chosen)
        return tuple(replace(d, width=w, tier=f"{d.tier} {w:g}") for d in chosen for w in self.widths)

    def __call__(self, sizes: Mapping[int, int], key: Key) -> Fleet:
        """The fleet of these clients."""
        kinds = self.kinds()
        return Fleet({i: kinds[c] for i, c in dealt(sizes, len(kinds), self.by, key.at("tiers")).items()}, dict(sizes))


def _fixed(by: By, dynamic: bool) -> None:
    if dynamic and by != "random":
        raise ValueError(f"with dynamic=true a device is drawn again in every round: it cannot go by {by}")


def tiers(sizes: Mapping[int, int], widths: Sequence[float], key: Key) -> Fleet:
    """Clients spread evenly over the widths, by a random permutation: independent of how much data they have."""
    return Tiers(tuple(widths))(sizes, key)
