"""The simulator: carries orders and replies on a virtual clock, and knows no method.

Each order is encoded, worked on, answered, encoded, checked and only then merged, as on a network;
the bytes that are counted are those.  When a reply arrives is a price of what was counted on the
client's device, so a run takes the same virtual time on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..fleet import Fate, Fleet
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
    """An order that is out: what will come back, when, and what that takes.

    ``reply`` is None if the work failed, or if the client dropped out.
    """

    order: Order
    ends: float
    reply: bytes | None
    down: int
    usage: Usage
    cost: Price
    tier: str
    reason: str = ""
    fate: Fate = Fate()

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
    :mod:`fedquilt.guard`).  ``unseen`` clients are never selected; ``sizes`` says how many samples
    each client trains on in a round, where that changes.
    """

    method: Method
    model: Model
    fleet: Fleet
    key: Key
    site: Site
    run: str = ""
    norm: float = math.inf
    unseen: frozenset[int] = frozenset()
    sizes: Callable[[int], Mapping[int, int]] | None = None

    def begin(self) -> Now:
        """Before the first round."""
        return Now(self.method.begin(self.model, self.fleet))

    # ---- out
    def _plan(self, state: State, clock: float, out: Collection[int]) -> tuple[float, Fleet, list[Order]]:
        """Who is sent what.  Where nobody is there and nothing is out, the clock goes on to who comes first."""
        key = self.key.at("fleet")
        fleet = self._now(state.round, clock)
        orders = self.method.plan(state, fleet, self.model, self.key, out, self.run)
        later = self._left(state).wakes(clock, key)
        if orders or out or not clock < later < math.inf:
            return clock, fleet, orders
        fleet = self._now(state.round, later)
        return later, fleet, self.method.plan(state, fleet, self.model, self.key, out, self.run)

    def _now(self, round: int, clock: float) -> Fleet:
        """Those who train, as they are in this round at this time."""
        those = self.fleet.without(self.unseen) if self.unseen else self.fleet
        fleet = those.now(round, clock, self.key.at("fleet"))
        return fleet if self.sizes is None else replace(fleet, sizes=self.sizes(round))

    def _left(self, state: State) -> Fleet:
        """Those who may be selected again, away or not."""
        return self.fleet.without({*self.unseen, *self.method.stop.retired(state.notes.get("stop"))})

    def _launch(self, orders: Sequence[Order], clock: float) -> list[Flight]:
        """Have these orders worked on; what comes of each arrives when its device has done it."""
        worked = self.site.work(orders) if orders else []
        return [self._flight(order, done, clock) for order, done in zip(orders, worked, strict=True)]

    def _flight(self, order: Order, done: Worked, clock: float) -> Flight:
        key = self.key.at("fleet")
        device, fate = (
            self.fleet.device(order.client, order.round, key),
            self.fleet.fate(order.client, order.round, key),
        )
        down, reply = order_size(order), None if fate.dropped else done.reply
        cost = price(down, len(reply or b""), done.usage, device, fate.slowdown)
        # a broken line is noticed when the reply would have come; a deadline tells nobody lost from the slow
        never = fate.dropped and self.method.schedule.until(clock) < math.inf
        ends = math.inf if never else clock + cost.seconds
        return Flight(order, ends, reply, down, done.usage, cost, device.tier, done.reason, fate)

    # ---- back
    def round(self, now: Now) -> tuple[Now, Round]:
        """Send what is to be sent, wait as the schedule says, and step."""
        method, state = self.method, now.state
        clock, fleet, orders = self._plan(state, now.clock, {f.order.client for f in now.flights})
        flights = sorted([*now.flights, *self._launch(orders, clock)], key=lambda f: (f.ends, f.order.client))
        if not flights:
            after = self._nobody(state, fleet, clock)
            return Now(after, clock), Round(self._record(now, after, clock, [], [], []), [])
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
            clients += [_told(f, "dropped" if f.fate.dropped else "late", state.round) for f in flights]
            flights = []
        if len(replies) >= method.schedule.quorum(len(orders)):
            after = method.step(state, fleet, replies)
        else:
            after = replace(state, round=state.round + 1)
        record = self._record(now, after, clock, orders, replies, clients)
        return Now(after, clock, tuple(flights)), Round(record, clients)

    def _nobody(self, state: State, fleet: Fleet, clock: float) -> State:
        """A round without anybody: another may come, unless all have retired or will never be there again."""
        left = self._left(state)
        if fleet.away.isdisjoint(left.devices):
            return replace(state, stopped="there is nobody left to select")
        if left.wakes(clock, self.key.at("fleet")) == math.inf:
            return replace(state, stopped="nobody will be there any more")
        return replace(state, round=state.round + 1)

    def _verdict(self, flight: Flight) -> Reply | Rejection | str:
        if flight.reply is None:
            return "dropped" if flight.fate.dropped else "failed"
        verdict = admit(flight.reply, flight.order, flight.order.client, norm=self.norm)
        return (
            replace(verdict, seconds=flight.cost.seconds, order=flight.order) if isinstance(verdict, Reply) else verdict
        )

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
            "peak": max((c["peak"] for c in clients), default=0.0),
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
        "slowdown": flight.fate.slowdown,
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
            "fate": dict(vars(f.fate)),
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
            Fate(**f["fate"]),
        )
        for f in value["flights"]
    ]
    return Now(State(**value["state"]), value["clock"], tuple(flights))
