"""The rounds of a run: who is sent what, how long is waited, what is merged.

Drivers differ in how orders get to clients and what time it is; this loop is all of theirs, and
knows no method.  Each reply stands before the guard, and only then may it be merged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..fleet import Fate, Fleet
from ..guard import Rejection, admit
from ..key import Key
from ..meter import Price, Usage
from ..method import Method
from ..model import Model
from ..types import Order, Reply, State
from .site import Site
from .wire import decode_order, encode_order

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
    facts: Mapping[str, Any] = field(default_factory=dict)  # what a driver notes beside

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
    """What a round was: one record, one a client whose work ended in it, and scores that came with their replies."""

    record: Record
    clients: list[Record]
    scores: list[Record] = field(default_factory=list)


@dataclass(eq=False)
class Rounds(ABC):
    """The loop of a run, which every driver shares.  ``begin`` gives the first :class:`Now`, ``round`` the next.

    A driver says who is there (``present``), sends orders off (``launch``), waits for what comes next
    (``land``) and has models scored (``judge``).  ``site`` is where the clients of this process are.
    ``norm`` bounds the length of a reply's update (see :mod:`fedquilt.guard`).  ``unseen`` clients are
    never selected; ``sizes`` says how many samples each client trains on in a round, where that changes.
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

    # ---- what a driver does
    @abstractmethod
    def present(self, state: State, clock: float) -> Fleet:
        """Those who train, as they are in this round at this time, and who of them is away."""

    @abstractmethod
    def launch(self, orders: Sequence[Order], clock: float, out: Sequence[Flight]) -> list[Flight]:
        """Send these orders off; all that is out then, ``out`` included."""

    @abstractmethod
    def land(self, flights: list[Flight], clock: float, until: float) -> tuple[Flight | None, float]:
        """Take the flight that ends next out of the list, None if none does before ``until``; and the time then."""

    @abstractmethod
    def judge(self, state: State, clients: Collection[int], splits: Sequence[str], last: bool) -> list[Record]:
        """The scores of a state, unless they are to come with the replies of the next round."""

    def time(self, clock: float) -> float:
        """What the time is now, if it was ``clock`` when it was last looked at."""
        return clock

    def wakes(self, state: State, clock: float) -> float:
        """The first time, not before ``clock``, at which somebody may be there who may be selected."""
        return math.inf

    # ---- a round
    def _plan(self, state: State, clock: float, out: Collection[int]) -> tuple[float, Fleet, list[Order]]:
        """Who is sent what.  Where nobody is there and nothing is out, the clock goes on to who comes first."""
        fleet = self.present(state, clock)
        clock = self.time(clock)
        orders = self.method.plan(state, fleet, self.model, self.key, out, self.run)
        if orders or out or not clock < (later := self.wakes(state, clock)) < math.inf:
            return clock, fleet, orders
        fleet = self.present(state, later)
        return later, fleet, self.method.plan(state, fleet, self.model, self.key, out, self.run)

    def left(self, state: State) -> Fleet:
        """Those who may be selected again, away or not."""
        return self.fleet.without({*self.unseen, *self.method.stop.retired(state.notes.get("stop"))})

    def round(self, now: Now) -> tuple[Now, Round]:
        """Send what is to be sent, wait as the schedule says, and step."""
        method, state = self.method, now.state
        clock, fleet, orders = self._plan(state, now.clock, {f.order.client for f in now.flights})
        flights = self.launch(orders, clock, now.flights)
        if not flights:
            after = self._nobody(state, fleet, clock)
            return Now(after, clock), Round(self._record(now, after, clock, [], [], []), [])
        replies: list[Reply] = []
        clients: list[Record] = []
        until = method.schedule.until(clock)
        while flights and not method.schedule.enough(len(replies), len(flights), len(clients) - len(replies)):
            flight, clock = self.land(flights, clock, until)
            if flight is None:
                over, until = until, method.schedule.after(until, len(replies))
                if until <= over:
                    break
                continue
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
        left = self.left(state)
        if fleet.away.isdisjoint(left.devices):
            return replace(state, stopped="there is nobody left to select")
        if self.wakes(state, clock) == math.inf:
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
            "told": self.method.told(after.notes),
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
    noted = dict(flight.facts)
    if isinstance(verdict, Reply):
        metrics, weight = dict(verdict.metrics), verdict.weight
    elif isinstance(verdict, Rejection):
        outcome, reason = str(verdict.code), verdict.reason
        noted["digest"] = verdict.digest
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
        **noted,
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
