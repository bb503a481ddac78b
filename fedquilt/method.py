"""A federated method is six parts and a name; every part has a default, and the defaults are FedAvg.

    State --plan--> [Order] --(wire)--> local(order, client) --(wire)--> [Reply] --step--> State'

``print(method)`` is the full record of its settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .cover import Cover, Params, take
from .fleet import Fleet
from .key import Key
from .model import Model
from .norm import held, norm, travelling
from .parts.local import Train
from .parts.merge import CoverMean
from .parts.schedule import Sync
from .parts.select import Uniform
from .parts.send import Everything
from .parts.stop import Never
from .types import Brief, Grant, Json, Local, Merge, Order, Part, Reply, Scalar, Schedule, Select, Send, State, Stop

NOTED = ("select", "send", "merge", "stop")
LEAST = {"batch": 1, "epochs": 1, "steps": 1, "inner": 1, "clients": 1, "finetune": 0}  # settings of any part


@dataclass(frozen=True)
class Method:
    """Who, which part goes down, the work, the merge, the end, and the clock; ``norm`` is its policy of statistics.

    With ``exits`` it wants a net with a small head after each stage.

    ``spec`` is what builds it again, where a builder of :mod:`fedquilt.methods` made it.
    """

    name: str
    select: Select = Uniform()
    send: Send = Everything()
    local: Local = Train()
    merge: Merge = CoverMean()
    stop: Stop = Never()
    schedule: Schedule = Sync()
    norm: str = "shared"
    exits: bool = False
    spec: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        norm(self.norm)
        for part in (*self._noted(), self.local, self.schedule):
            for name, least in LEAST.items():
                value = getattr(part, name, None)
                if isinstance(value, int | float) and value < least:
                    raise ValueError(f"{name} is at least {least}, not {value}")

    @property
    def asks(self) -> tuple[str, ...]:
        """The metrics that its parts want in every reply, beside the training loss."""
        return tuple(sorted({a for p in self._noted() for a in p.asks}))

    def _noted(self) -> list[Part]:
        return [getattr(self, p) for p in NOTED]

    def told(self, notes: Mapping[str, Any]) -> dict[str, Json]:
        """What the record of a round says of its parts' notes."""
        return {k: v for p in NOTED if notes.get(p) for k, v in getattr(self, p).tell(notes[p]).items()}

    def suits(self, model: Model) -> None:
        """Refuse a policy of statistics that the method's replies cannot keep to."""
        if self.norm == "per-width" and model.statistics & self.local.grant(Cover({}), model).outer.spans.keys():
            raise ValueError(
                f"clients of {self.name} choose units of their own, whatever their device's width: there are no "
                "statistics per-width; choose another norm"
            )

    def begin(self, model: Model, fleet: Fleet) -> State:
        """The server before the first round."""
        self.suits(model)
        widths = {v for w in fleet.widths for v in (w, *self.send.widths(w))}
        return State(0, held(model.params(), model, self.norm, sorted(widths)))

    def order(
        self, state: State, client: int, fleet: Fleet, model: Model, key: Key, run: str = "", use: bool = False
    ) -> Order:
        """What this client is sent in this round (``key`` is the run's): to train it, or only to ``use`` it."""
        device = fleet.devices[client]
        here = key.at(state.round, "send", client)
        sub = self.send.used(state, client, device, model, here) if use else None
        sub = self.send(state, client, device, model, here) if sub is None else sub
        cover = travelling(sub, model, self.norm, self.send.widths(device.width))
        params = take(dict(state.params), cover)
        grant = self.local.grant(cover, model)
        grant = replace(
            grant,
            metrics=grant.metrics | {"loss", *self.asks},
            weight=float(fleet.sizes.get(client, grant.weight)),
            nbytes=min(grant.nbytes, largest(grant)),
        )
        scalars: dict[str, Scalar] = {"norm": self.norm}
        if self.asks:
            scalars["asks"] = ",".join(self.asks)
        extra: Params = {}
        parts: list[Part | Local] = [*self._noted(), self.local]
        for part in parts:
            brief = part.brief(state, client, device, model, cover, here)
            scalars |= brief.scalars
            extra |= brief.extra
        version = state.versions.get(client, 0)
        return Order(run, key.seed, client, state.round, params, cover, grant, version, scalars, extra)

    def plan(
        self, state: State, fleet: Fleet, model: Model, key: Key, busy: Collection[int] = (), run: str = ""
    ) -> list[Order]:
        """The orders to send now, to clients that are not ``busy``; pure."""
        free = fleet.without({*busy, *fleet.away, *self.stop.retired(state.notes.get("stop"))})
        n = min(len(free), self.schedule.want(len(fleet), len(busy)))
        if n <= 0:
            return []
        chosen = self.select(state, free, n, key.at(state.round, "select"))
        told = [part.together(state, free.only(chosen)) for part in self._noted()]
        orders = [self.order(state, i, fleet, model, key, run) for i in chosen]
        return [added(o, [t[o.client] for t in told if o.client in t]) for o in orders]

    def step(self, state: State, fleet: Fleet, replies: Sequence[Reply]) -> State:
        """The state after these replies, whatever the order in which they came; pure.

        Parts learn from the state as it was; the merge finds in its note what it has just learnt.
        """
        replies = sorted(replies, key=lambda r: (r.client, r.round))
        notes = {p: getattr(self, p).learn(state.notes.get(p), state, replies, fleet) for p in NOTED}
        known = {**state.versions, **{r.client: r.round + 1 for r in replies}}
        params = self.merge(replace(state, notes=notes), replies)
        new = State(state.round + 1, params, notes, None, dict(sorted(known.items())))
        return replace(new, stopped=self.stop(new, fleet, replies))


def added(order: Order, briefs: Sequence[Brief]) -> Order:
    """The order, with more to say."""
    for brief in briefs:
        order = replace(order, scalars={**order.scalars, **brief.scalars}, extra={**order.extra, **brief.extra})
    return order


def largest(grant: Grant) -> int:
    """The most bytes that an honest reply can have: all that it may speak about, at eight bytes a value."""
    values = 8 * grant.outer.numel + _masks(grant.outer)
    extras = sum(64 + len(k) + dtype.itemsize * _numel(shape) for k, (dtype, shape) in grant.extras.items())
    names = sum(64 + len(k) for k in (*grant.outer, *grant.metrics))
    return 4096 + values + extras + names + grant.outer.nbytes


def _masks(cover: Cover) -> int:
    return sum(_numel(s.shape) // 8 + 1 for s in cover.spans.values())


def _numel(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out
