"""The driver: the shared rounds, on a real clock, over Flower's messages.

Scores ride in the reply to the next order: who is sent work scores, before it begins, the model that it would
have used; who is not asked in that round is asked for the scores alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from ...fleet import Fleet
from ...meter import Price, Usage, price
from ...types import Order, State
from ..rounds import Flight, Now, Record, Round, Rounds
from ..score import everyone, told, wanted
from ..site import Scores
from ..wire import encode_order, order_size
from .letter import Letter
from .post import Came, Post, Sent, number, numeric, one_line
from .roster import Roster, Terms

Ticket = tuple[int, int]  # of an order: its client and its round
GRACE = 60.0  # seconds that scores may still take when a round has ended
OURS = {"round", "model", "client", "tier", "split", "population"}  # what the server says in the record of a score


class Nobody(RuntimeError):
    """Too few clients are there, and have been waited for."""


@dataclass(frozen=True)
class Manner:
    """How a deployed run waits.

    A round begins when ``least`` clients are free (0: when all are that have not left; the first round waits for
    all in any case), and after ``patience`` seconds without them the run ends; it can be resumed.  ``seconds`` is
    what a method hears of how long a client took: the price of its counts on its declared device, or as measured.
    """

    patience: float = 600.0
    least: int = 1
    poll: float = 0.1
    seconds: Literal["priced", "measured"] = "priced"


@dataclass(eq=False)
class Deployed(Rounds):
    """A run whose clients are at Flower's nodes.  Make one with :func:`deployed`."""

    post: Post = field(kw_only=True)
    terms: Terms = field(kw_only=True)
    manner: Manner = field(default_factory=Manner, kw_only=True)
    notice: Callable[[str], None] = field(default=print, kw_only=True)

    def __post_init__(self) -> None:
        self.roster = Roster(self.post, self.terms, self.notice)
        self.begun: float | None = None  # when the run's clock was 0
        self.met = False  # have all been waited for once?
        self.free: set[int] = set()  # who was there and free when a round was last planned
        self.flying: set[Ticket] = set()
        self.landed: dict[Ticket, Came] = {}
        self.due: tuple[State, tuple[str, ...], frozenset[int]] | None = None
        self.scores: dict[int, Scores] = {}

    # ---- the time, and who is there
    def time(self, clock: float) -> float:
        """Seconds since the run began, less those in which no server was there."""
        now = self.post.clock()
        if self.begun is None:
            self.begun = now - clock
        return now - self.begun

    def present(self, state: State, clock: float) -> Fleet:
        """Wait until enough clients are free; all others are away."""
        self.time(clock)
        left = set(self.left(state).devices)
        need = len(left) if not (self.met and self.manner.least) else min(self.manner.least, len(left))
        end = self.post.clock() + self.manner.patience
        while True:
            self._look()
            self.free = free = self.roster.here().keys() & left
            if len(free) >= need:
                break
            if self.post.clock() > end:
                if len(free) >= max(1, self.manner.least):
                    break
                raise Nobody(
                    f"{len(free)} of {need} clients that a round waits for were there in {self.manner.patience:g} s; "
                    "the run is kept, and goes on when it is submitted again"
                )
            self.post.rest()
        self.met = True
        sizes = dict(self.fleet.sizes) if self.sizes is None else {**self.fleet.sizes, **self.sizes(state.round)}
        fleet = replace(self.fleet.without(self.unseen), sizes=sizes).drawn(state.round, self.key.at("fleet"))
        return replace(fleet, away=frozenset(set(fleet.devices) - free))

    def wakes(self, state: State, clock: float) -> float:
        """Of those who are there nobody was selected: when somebody else has come, if anybody may."""
        left, end = set(self.left(state).devices), self.post.clock() + self.manner.patience
        if left <= self.free:
            return math.inf
        while not (self.roster.here().keys() & left) - self.free:
            if self.post.clock() > end:
                raise Nobody(
                    f"of those who were there nobody was selected, and nobody else came in {self.manner.patience:g} s; "
                    "the run is kept, and goes on when it is submitted again"
                )
            self.post.rest()
            self._look()
        return self.time(clock)

    def _look(self) -> None:
        """Greet who is new, and take in what has come."""
        self.roster.greet()
        for came in self.post.pull():
            self._take(came)

    def _take(self, came: Came) -> None:
        if came.sent.kind == "hello":
            hello = self.roster.heard(came)
            if hello is not None:
                devices, sizes = dict(self.fleet.devices), dict(self.fleet.sizes)
                devices[hello.client], sizes[hello.client] = hello.device, hello.counts["train"]
                self.fleet = replace(self.fleet, devices=devices, sizes=sizes)
            return
        client, round = came.sent.ticket
        if self.due is not None and round == self.due[0].round and came.answer is not None:
            scores = _scores(came.answer.facts.get("scores"), self.due[1])
            if scores:
                self.scores[client] = scores
        if came.sent.kind == "work" and came.sent.ticket in self.flying:
            self.landed[came.sent.ticket] = came

    # ---- out
    def launch(self, orders: Sequence[Order], clock: float, out: Sequence[Flight]) -> list[Flight]:
        """Push the orders; those of ``out`` that another process had pushed are pushed again."""
        lost = [f for f in out if _ticket(f.order) not in self.flying]
        new = [*(f.order for f in lost), *orders]
        here, letters = self.roster.here(), []
        for order in new:
            self.flying.add(_ticket(order))
            if order.client not in here:
                self._miss(order)
                continue
            facts: dict[str, Any] = {"kind": "work"}
            blob = encode_order(order)
            if self.due is not None and order.round == self.due[0].round:
                facts["splits"] = list(self.due[1])
                [use] = wanted(self, self.due[0], [order.client])
                if use.cover != order.cover:  # what it trains is not what it would use: both travel
                    facts["use"], blob = len(blob), blob + encode_order(use)
            letters.append((here.pop(order.client), _ticket(order), Letter(facts, blob)))
        for failed in [*self.post.push(letters), *self._ask_scores({o.client for o in new})]:
            self._take(failed)
        flights = [f for f in out if f not in lost]
        return flights + [self._flight(order) for order in new]

    def _flight(self, order: Order) -> Flight:
        device = self.fleet.device(order.client, order.round, self.key.at("fleet"))
        return Flight(order, math.inf, None, order_size(order), Usage(), Price(0.0, 0.0), device.tier)

    def _miss(self, order: Order) -> None:
        sent = Sent(0, "work", _ticket(order), self.post.clock())
        self.landed[_ticket(order)] = Came(sent, None, "its node is not there", 0.0)

    # ---- back
    def land(self, flights: list[Flight], clock: float, until: float) -> tuple[Flight | None, float]:
        """The next that has come; None when the time is over."""
        while True:
            self._look()
            for flight in flights:
                came = self.landed.pop(_ticket(flight.order), None)
                if came is not None:
                    flights.remove(flight)
                    self.flying.discard(_ticket(flight.order))
                    return self._ended(flight, came), self.time(clock)
            if self.time(clock) >= until:
                return None, until
            self.post.rest()

    def _ended(self, flight: Flight, came: Came) -> Flight:
        key, order = self.key.at("fleet"), flight.order
        device = self.fleet.device(order.client, order.round, key)
        if came.answer is None:
            return replace(flight, reason=came.reason, facts={"wall": came.seconds})
        facts, reply = came.answer.facts, came.answer.blob or None
        usage = _usage(facts.get("usage"))
        cost = price(flight.down, len(reply or b""), usage, device)
        if self.manner.seconds == "measured":
            cost = replace(cost, seconds=came.seconds)
        inside = _inside(facts)
        noted, reason = {"wall": came.seconds, "inside": inside}, one_line(str(facts.get("reason", "")))
        return replace(flight, reply=reply, usage=usage, cost=cost, reason=reason, facts=noted)

    def round(self, now: Now) -> tuple[Now, Round]:
        """A round; what has not come by its end is nobody's flight any more, unless it is carried over."""
        after, report = super().round(now)
        keep = {_ticket(f.order) for f in after.flights}
        self.flying &= keep
        self.landed = {k: v for k, v in self.landed.items() if k in keep}
        if self.due is None:
            return after, report
        return after, replace(report, scores=self._scored())

    # ---- scores
    def judge(self, state: State, clients: Collection[int], splits: Sequence[str], last: bool) -> list[Record]:
        """Scores come with the replies to the orders of this state; after the last round, by themselves."""
        self.due = (state, tuple(splits), frozenset(clients))
        if not last:
            return []
        if not self.met:
            self.present(state, 0.0)
        self._wait(lambda s: True)  # who is still busy would not be asked
        for failed in self._ask_scores(set()):
            self._take(failed)
        return self._scored()

    def _ask_scores(self, asked: set[int]) -> list[Came]:
        """Ask those for their scores alone who are not asked for work."""
        if self.due is None:
            return []
        state, splits, clients = self.due
        here = {i: n for i, n in self.roster.here().items() if i in clients and i not in asked}
        letters = [
            (here[o.client], _ticket(o), Letter({"kind": "score", "splits": list(splits)}, encode_order(o)))
            for o in wanted(self, state, here.keys())
        ]
        return self.post.push(letters)

    def _scored(self) -> list[Record]:
        """The scores of the state that is due, when all that are out have come, or have been waited for."""
        assert self.due is not None
        state, splits, _ = self.due
        self._wait(lambda s: s.kind == "score")
        orders = {o.client: o for o in wanted(self, state, self.scores.keys())}
        records = [r for i in sorted(self.scores) for r in told(self, orders[i], self.scores[i])]
        if records and not any(
            h.own for h in self.roster.hellos.values()
        ):  # else the server does not have everybody's data
            whole = everyone(self, state)
            [scores] = self.site.score([whole], splits)
            records += told(self, whole, scores)
        self.due, self.scores = None, {}
        return records

    def _wait(self, on: Callable[[Sent], bool]) -> None:
        """Until no such letter is out, or too long."""
        end = self.post.clock() + min(GRACE, self.manner.patience)
        while any(map(on, self.post.out.values())) and self.post.clock() < end:
            self._look()
            self.post.rest()


def _ticket(order: Order) -> Ticket:
    return order.client, order.round


def _usage(said: Any) -> Usage:
    """What a stranger says that it has executed."""
    if not isinstance(said, dict):
        return Usage()
    named: dict[str, Any] = {f.name: number(said, f.name) for f in fields(Usage)}
    named |= {k: int(named[k]) for k in ("samples", "steps", "requests", "fallbacks")}
    return Usage(**named)


def _inside(facts: Mapping[str, Any]) -> dict[str, float]:
    """Seconds that a node says it took, on its own clock: to start the app's process, to forward, to score, to work."""
    parts, at = facts.get("seconds"), facts.get("at")
    out = {k: number(parts, k) for k in ("score", "work")} if isinstance(parts, dict) else {}
    if isinstance(at, dict):
        process, began, ended = (number(at, k) for k in ("process", "began", "ended"))
        out |= {"start": max(0.0, began - process), "forward": max(0.0, ended - began - sum(out.values()))}
    return out


def _scores(said: Any, splits: Sequence[str]) -> Scores | None:
    """Scores of just these splits, numbers all; else None."""
    if not isinstance(said, dict) or set(said) != set(splits):
        return None
    for metrics in said.values():
        if not isinstance(metrics, dict) or not 1 <= len(metrics) <= 64:
            return None
        for k, v in metrics.items():
            if len(k) > 64 or k in OURS or not numeric(v):
                return None
    return {s: dict(said[s]) for s in splits}
