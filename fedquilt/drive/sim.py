"""The simulator: carries orders and replies on a virtual clock, and knows no method.

Each order is encoded, worked on, answered, encoded, checked and only then merged, as on a network;
the bytes that are counted are those.  When a reply arrives is a price of what was counted on the
client's device, so a run takes the same virtual time on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..fleet import Fleet
from ..guard import Rejection, admit
from ..key import Key
from ..meter import Price, Usage, price
from ..method import Method
from ..model import Model
from ..types import Order, Reply, State
from .site import Site, Worked
from .wire import decode_order, encode_order, order_size

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Flight:
    """An order that is out: what will come back, when, and what that takes.  ``reply`` is None if the work failed."""

    order: Order
    ends: float
    reply: bytes | None
    down: int
    usage: Usage
    cost: Price
    tier: str
    reason: str = ""

    @property
    def up(self) -> int:
        """Bytes of the reply."""
        return len(self.reply or b"")


@dataclass(frozen=True, eq=False)
class Now:
    """All that a run is between two rounds: the server's state, the clock, and what is out."""

    state: State
    clock: float = 0.0
    flights: tuple[Flight, ...] = ()


@dataclass(frozen=True, eq=False)
class Round:
    """What a round was: one record, and one a client whose work ended in it."""

    record: Record
    clients: list[Record]


@dataclass(eq=False)
class Simulator:
    """One run's world.  ``begin`` gives the first :class:`Now`, ``round`` the next; both are repeatable.

    ``site`` is where the clients are.  ``norm`` bounds the length of a reply's update (see
    :mod:`fedquilt.guard`).
    """

    method: Method
    model: Model
    fleet: Fleet
    key: Key
    site: Site
    run: str = ""
    norm: float = math.inf

    def begin(self) -> Now:
        """Before the first round."""
        return Now(self.method.begin(self.model, self.fleet))

    # ---- out
    def _launch(self, orders: Sequence[Order], clock: float) -> list[Flight]:
        """Have these orders worked on; what comes of each arrives when its device has done it."""
        worked = self.site.work(orders) if orders else []
        return [self._flight(order, done, clock) for order, done in zip(orders, worked, strict=True)]

    def _flight(self, order: Order, done: Worked, clock: float) -> Flight:
        device = self.fleet.devices[order.client]
        down = order_size(order)
        cost = price(down, len(done.reply or b""), done.usage, device)
        return Flight(order, clock + cost.seconds, done.reply, down, done.usage, cost, device.tier, done.reason)

    # ---- back
    def round(self, now: Now) -> tuple[Now, Round]:
        """Send what is to be sent, wait as the schedule says, and step."""
        method, state, clock = self.method, now.state, now.clock
        out = {f.order.client for f in now.flights}
        orders = method.plan(state, self.fleet, self.model, self.key, out, self.run)
        flights = sorted([*now.flights, *self._launch(orders, clock)], key=lambda f: (f.ends, f.order.client))
        if not flights:
            nobody = replace(state, stopped="there is nobody left to select")
            return Now(nobody, clock), Round(self._record(now, nobody, clock, [], [], []), [])
        replies: list[Reply] = []
        clients: list[Record] = []
        until = method.schedule.until(clock)
        while flights and not method.schedule.enough(len(replies), len(flights)):
            if flights[0].ends > until:
                clock = until
                break
            flight = flights.pop(0)
            clock = max(clock, flight.ends)
            verdict = self._verdict(flight)
            if isinstance(verdict, Reply):
                replies.append(verdict)
            clients.append(_told(flight, verdict, state.round))
        if not method.schedule.keeps_late:
            clients += [_told(f, "late", state.round) for f in flights]
            flights = []
        if len(replies) >= method.schedule.quorum(len(orders)):
            after = method.step(state, self.fleet, replies)
        else:
            after = replace(state, round=state.round + 1)
        record = self._record(now, after, clock, orders, replies, clients)
        return Now(after, clock, tuple(flights)), Round(record, clients)

    def _verdict(self, flight: Flight) -> Reply | Rejection | str:
        if flight.reply is None:
            return "failed"
        return admit(flight.reply, flight.order, flight.order.client, norm=self.norm)

    def _record(
        self,
        now: Now,
        after: State,
        clock: float,
        orders: Sequence[Order],
        replies: Sequence[Reply],
        clients: Sequence[Record],
    ) -> Record:
        stepped = after.versions is not now.state.versions
        weights = sum(r.weight for r in replies)
        loss = sum(r.weight * r.metrics["loss"] for r in replies) / weights if weights else None
        return {
            "round": after.round,
            "clock": clock,
            "seconds": clock - now.clock,
            "asked": [o.client for o in orders],
            "merged": sorted(r.client for r in replies) if stepped else [],
            "outcomes": _counted(c["outcome"] for c in clients),
            "loss": loss,
            **{k: sum(c[k] for c in clients) for k in ("down", "up", "flops", "fallbacks", "joules")},
            "reached": self.method.stop.reached(after.notes.get("stop")),
            "stopped": after.stopped,
        }


def _counted(words: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    for w in words:
        out[w] = out.get(w, 0) + 1
    return dict(sorted(out.items()))


def _told(flight: Flight, verdict: Reply | Rejection | str, round: int) -> Record:
    """The record of one client's work."""
    outcome, reason, metrics, weight = "accepted", "", {}, None
    if isinstance(verdict, Reply):
        metrics, weight = dict(verdict.metrics), verdict.weight
    elif isinstance(verdict, Rejection):
        outcome, reason = str(verdict.code), verdict.reason
    else:
        outcome, reason = verdict, flight.reason
    return {
        "round": round + 1,
        "client": flight.order.client,
        "tier": flight.tier,
        "outcome": outcome,
        "reason": reason,
        "staleness": round - flight.order.round,
        "down": flight.down,
        "up": flight.up,
        **vars(flight.usage),
        "seconds": flight.cost.seconds,
        "joules": flight.cost.joules,
        "weight": weight,
        "metrics": metrics,
    }


# ---- to disk and back
def packed(now: Now) -> Mapping[str, Any]:
    """A :class:`Now` as plain values, tensors and bytes."""
    state = {f: getattr(now.state, f) for f in ("round", "params", "notes", "stopped", "versions")}
    flights = [
        {
            "order": encode_order(f.order),
            "ends": f.ends,
            "reply": f.reply,
            "usage": dict(vars(f.usage)),
            "cost": dict(vars(f.cost)),
            "tier": f.tier,
            "reason": f.reason,
        }
        for f in now.flights
    ]
    return {"state": state, "clock": now.clock, "flights": flights}


def unpacked(value: Mapping[str, Any]) -> Now:
    """The inverse of :func:`packed`."""
    flights = [
        Flight(
            decode_order(f["order"]),
            f["ends"],
            f["reply"],
            len(f["order"]),
            Usage(**f["usage"]),
            Price(**f["cost"]),
            f["tier"],
            f["reason"],
        )
        for f in value["flights"]
    ]
    return Now(State(**value["state"]), value["clock"], tuple(flights))
