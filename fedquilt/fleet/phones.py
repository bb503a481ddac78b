"""The 128 phones of mpfl's real-world study, as far as its text tells, and stated assumptions beyond.

Mishra and Gupta (ACM TOSN 2023, section 5) say of their 128 volunteers' phones: 1 to 12 GB of
memory, 41 of them 3 GB, the most of any size; 33 clocked at 2.0 to 2.3 GHz, the most of any range;
48 with less than 10 Mbps, the most of any range; eight types, T1 the weakest in processing; Wi-Fi or
cellular; plugged in or on battery.  The other counts stand in figures without numbers: assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..key import Key
from .devices import GIGA, MEGABIT, TRAINING, Device
from .fleets import Fleet

MEMORY = {1: 8, 2: 20, 3: 41, 4: 29, 6: 16, 8: 10, 12: 4}  # GB: phones; 3 GB is stated
CLOCK = {  # GHz: phones; 2.0 to 2.3 is stated
    (1.2, 1.5): 14,
    (1.5, 1.8): 24,
    (1.8, 2.0): 30,
    (2.0, 2.3): 33,
    (2.3, 2.6): 17,
    (2.6, 3.0): 10,
}
LINK = {(1.0, 10.0): 48, (10.0, 20.0): 34, (20.0, 40.0): 26, (40.0, 100.0): 20}  # Mbps: phones; below 10 is stated
TYPES = 8
UPLINK = 0.25  # assumed: the share of the downlink's speed
PLUGGED = 0.5  # assumed: the share of phones that are plugged in
WIFI, ROUTERS = 0.6, 32  # assumed: the share of phones on Wi-Fi, and how many routers there are


def phones(key: Key) -> list[Device]:
    """All 128, from the weakest processor to the strongest: T1 to T8, 16 of each.

    A phone computes on the one core of the highest clock (the paper's measure), with one 128-bit fused
    multiply-add a cycle.  More memory goes with a higher clock, but not strictly; links go with neither.
    """
    total = sum(CLOCK.values())
    clocks = sorted(_inside(CLOCK, key.at("clock")))
    links = _shuffled(_inside(LINK, key.at("link")), key.at("links"))
    sizes = [gigabytes for gigabytes, n in MEMORY.items() for _ in range(n)]
    rank = sorted(range(total), key=lambda i: i + total / 4 * key.at("memory", i).uniform())
    memory = dict(zip(rank, sizes, strict=True))
    out = []
    for i in range(total):
        at, kind = key.at("phone", i), i * TYPES // total + 1
        out.append(
            Device(
                width=kind / TYPES,
                flops=TRAINING * 8 * clocks[i] * 1e9,
                down=links[i] * MEGABIT,
                up=UPLINK * links[i] * MEGABIT,
                memory=memory[i] * GIGA,
                watts=1.0 + 0.5 * clocks[i],
                radio=1.3,
                idle=0.5,
                tier=f"T{kind}",
                plugged=at.at("plugged").uniform() < PLUGGED,
                network=_network(i, at),
                source="mpfl (Mishra and Gupta, ACM TOSN 2023): 41 phones with 3 GB, 33 at 2.0 to 2.3 GHz, 48 below "
                "10 Mbps, eight types; every other figure: assumed",
            )
        )
    return out


def _network(i: int, key: Key) -> str:
    if key.at("wifi").uniform() < WIFI:
        return f"wifi-{int(ROUTERS * key.at('router').uniform())}"
    return f"cell-{i}"


def _inside(classes: Mapping[tuple[float, float], int], key: Key) -> list[float]:
    """As many values in each range as its count says."""
    return [low + (high - low) * key.at(low, j).uniform() for (low, high), n in classes.items() for j in range(n)]


def _shuffled(values: list[float], key: Key) -> list[float]:
    return [values[j] for j in key.permutation(len(values)).tolist()]


@dataclass(frozen=True)
class Phones128:
    """As many of mpfl's 128 phones as there are clients, the types T1 (weakest) to T8 as tiers.

    ``pick="paper"`` takes them as the paper says that it prefers: plugged in, each on a network of its own.
    """

    pick: Literal["random", "paper"] = "random"

    def __call__(self, sizes: Mapping[int, int], key: Key) -> Fleet:
        """The fleet of these clients."""
        every = phones(key.at("phones128"))
        if len(sizes) > len(every):
            raise ValueError(f"phones128 has {len(every)} phones: too few for {len(sizes)} clients")
        order = key.at("pick").permutation(len(every)).tolist()
        if self.pick == "paper":
            order = _preferred(order, every)
        devices = {i: every[j] for i, j in zip(sorted(sizes), order, strict=False)}
        return Fleet(devices, dict(sizes))


def _preferred(order: list[int], every: list[Device]) -> list[int]:
    """Stable: the plugged-in first, and among them those on a network that nobody before them is on."""
    seen: set[str] = set()
    shared = {}
    for j in sorted(order, key=lambda j: (not every[j].plugged, order.index(j))):
        shared[j] = every[j].network in seen
        seen.add(every[j].network)
    return sorted(order, key=lambda j: (not every[j].plugged, shared[j], order.index(j)))
