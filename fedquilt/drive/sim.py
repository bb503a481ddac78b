"""The simulator: carries orders and replies on a virtual clock, and knows no method.

Each order is encoded, worked on, answered, encoded, checked and only then merged, as on a network;
the bytes that are counted are those.  When a reply arrives is a price of what was counted on the
client's device, so a run takes the same virtual time on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..fleet import Fleet
from ..meter import price
from ..types import Order, State
from .rounds import Flight, Now, Record, Round, Rounds, packed, unpacked
from .score import score
from .site import Worked
from .wire import order_size

__all__ = ["Flight", "Now", "Record", "Round", "Simulator", "packed", "unpacked"]


@dataclass(eq=False)
class Simulator(Rounds):
    """One run's world, with all its clients.  What it does is repeatable: the same :class:`Now`, the same next."""

    # ---- out
    def present(self, state: State, clock: float) -> Fleet:
        """Those who train, as they are in this round at this time."""
        those = self.fleet.without(self.unseen) if self.unseen else self.fleet
        fleet = those.now(state.round, clock, self.key.at("fleet"))
        return fleet if self.sizes is None else replace(fleet, sizes=self.sizes(state.round))

    def wakes(self, state: State, clock: float) -> float:
        """The first time, not before ``clock``, at which somebody may be there who may be selected."""
        return self.left(state).wakes(clock, self.key.at("fleet"))

    def launch(self, orders: Sequence[Order], clock: float, out: Sequence[Flight]) -> list[Flight]:
        """Have these orders worked on; what comes of each arrives when its device has done it."""
        worked = self.site.work(orders) if orders else []
        new = [self._flight(order, done, clock) for order, done in zip(orders, worked, strict=True)]
        return sorted([*out, *new], key=lambda f: (f.ends, f.order.client))

    def _flight(self, order: Order, done: Worked, clock: float) -> Flight:
        key = self.key.at("fleet")
        device, fate = (
            self.fleet.device(order.client, order.round, key),
            self.fleet.fate(order.client, order.round, key),
        )
        down, reply = order_size(order), None if fate.dropped else done.reply
        cost = price(down, len(reply or b""), done.usage, device, fate.slowdown)
        # a broken line is noticed when the reply would have come; a deadline tells nobody lost from the slow
        schedule = self.method.schedule
        never = fate.dropped and not schedule.keeps_late and schedule.until(clock) < math.inf
        ends = math.inf if never else clock + cost.seconds
        return Flight(order, ends, reply, down, done.usage, cost, device.tier, done.reason, fate)

    # ---- back
    def land(self, flights: list[Flight], clock: float, until: float) -> tuple[Flight | None, float]:
        """The first in the list, unless that is too late."""
        if flights[0].ends > until:
            return None, until
        flight = flights.pop(0)
        return flight, max(clock, flight.ends)

    def judge(self, state: State, clients: Collection[int], splits: Sequence[str], last: bool) -> list[Record]:
        """Everybody's scores, at once."""
        return score(self, state, clients, splits)
