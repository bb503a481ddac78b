"""Sub-models that are chosen once: the way in which FedSPU's comparison runs FedMP, Hermes and PruneFL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..cover import Cover, Params, put, take
from ..fit import Fitted
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..types import Client, Grant, Order, Part, Reply, Served, Serving, State, Work
from .importance import best, granted, heard, told, unit_scores
from .local import Train, answer, measured, received, remember, section


@dataclass(frozen=True)
class Chosen(Part):
    """The whole model to who has not answered yet; then the units that the client answered with.

    Those are of its first answer; with ``latest`` of its last, and the whole model again after one without.
    """

    latest: bool = False

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """What the client has chosen."""
        units = (state.notes.get("send") or {}).get(str(client))
        return model.whole if units is None else model.cover(units)

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """What each client chose in its reply."""
        known: dict[str, Any] = dict(note or {})
        for r in replies:
            units = heard(r)
            if units and (self.latest or str(r.client) not in known):
                known[str(r.client)] = units
            elif self.latest:
                known.pop(str(r.client), None)
        return known


@dataclass(frozen=True)
class Static(Part):
    """Trains a sub-model that it chooses in its first round, and uses the one that it trained last.

    The choice is made after one step on what was received: as many units as the device carries, by the
    ``l1`` or ``l2`` norm of their weights or by how far these moved (``change``).  Without a ``score`` it
    trains what it is sent.
    """

    train: Train = Train()
    score: Literal["l1", "l2", "change"] | None = None

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Units of what was sent, and which these are."""
        if self.score is None:
            return Grant(cover)
        return Grant(cover, frozenset({"same", "whole", "block"}), granted(model))

    def _choose(self, order: Order, client: Client, whole: Params) -> Any:
        """The units that matter most after one step."""
        m = client.model
        one: Fitted = yield self.train.fit(order, client, whole, key=client.key.at("choose"), epochs=1, steps=1)
        moved = {k: one.params[k] - whole[k] if self.score == "change" else one.params[k] for k in m.trainable}
        return best(m, unit_scores(m, moved, "l1" if self.score == "l1" else "l2"), client.device.width)

    def __call__(self, order: Order, client: Client) -> Work:
        """Choose, if that is yet to be done; train the sub-model as a net of its own."""
        whole, sub = received(order, client)
        extra: Params = {}
        if self.score is not None and "chosen" not in client.memory.facts:
            sub = yield from self._choose(order, client, whole)
            extra = told(client.model, client.model.units(sub))
        out: Fitted = yield self.train.fit(order, client, take(whole, sub))
        metrics = yield from measured(order, client, out)
        whole = put(whole, sub, out.params)
        mine = order.cover & sub if extra else order.cover
        facts = {"chosen": True} if self.score is not None else {}
        memory = remember(facts, own=out.params, model=self.train.kept(order, client, whole))
        return answer(order, client, whole, metrics, mine, extra), memory

    def serve(self, order: Order, client: Client) -> Serving:
        """The sub-model that it trained last; before it has one, what it would receive."""
        own = section(client.memory, "own")
        if own:
            yield from ()
            return Served(client.model, own, order.norm)
        return (yield from self.train.serve(order, client))
