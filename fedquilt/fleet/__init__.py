"""The devices that clients run on: what they can do, when they are there, and what becomes of an order.

A fleet is named by a text, as a partition is: ``tiers:0.2,0.4,0.6,0.8,1``, ``levels:high:dynamic=true``,
``profiles:raspberry-pi-4,jetson-nano``, ``phones128``; so is its availability: ``day-night:period=86400``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..key import Key
from ..schema import chosen
from .demand import Demand
from .devices import PROFILES, Device
from .fleets import LEVELS, Fate, Fleet, Levels, Profiles, Tiers, tiers
from .phones import Phones128, phones
from .presence import Always, Availability, ByWidth, DayNight, Plugged, Random, Stragglers, Trace

__all__ = [
    "AVAILABILITY",
    "FLEETS",
    "LEVELS",
    "PROFILES",
    "STRAGGLERS",
    "Availability",
    "Demand",
    "Device",
    "Fate",
    "Fleet",
    "Stragglers",
    "muster",
    "phones",
    "tiers",
]

FLEETS: Mapping[str, Callable[..., Callable[[Mapping[int, int], Key], Fleet]]] = {
    "tiers": Tiers,
    "levels": Levels,
    "profiles": Profiles,
    "phones128": Phones128,
}

AVAILABILITY: Mapping[str, Callable[..., Availability]] = {
    "always": Always,
    "random": Random,
    "day-night": DayNight,
    "by-width": ByWidth,
    "plugged": Plugged,
    "trace": Trace,
}


def none() -> Stragglers:
    """Nobody is slower than its device."""
    return Stragglers()


def some(share: float = 0.1, factor: float = 5.0) -> Stragglers:
    """In each round, a ``share`` of the orders takes ``factor`` times as long."""
    return Stragglers(share, factor)


def same(share: float = 0.1, factor: float = 5.0) -> Stragglers:
    """The orders of a ``share`` of the clients, the same all along, take ``factor`` times as long."""
    return Stragglers(share, factor, fixed=True)


STRAGGLERS: Mapping[str, Callable[..., Stragglers]] = {"none": none, "random": some, "fixed": same}


def muster(
    fleet: str,
    sizes: Mapping[int, int],
    key: Key,
    availability: str = "always",
    dropout: float = 0.0,
    stragglers: str = "none",
) -> Fleet:
    """The fleet that these texts say, for clients with so many training samples; ``key`` is the fleet's own."""
    return replace(
        chosen(fleet, FLEETS, "fleet")(sizes, key),
        present=chosen(availability, AVAILABILITY, "availability"),
        dropout=dropout,
        stragglers=chosen(stragglers, STRAGGLERS, "stragglers"),
    )
