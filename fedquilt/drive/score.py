"""How good it is, for whom: every client's served model on its own data, and the global model on everybody's.

A figure says whose it is (``who``), of which model (``served``, ``global``), on which split, after
which round.  Evaluating draws nothing from the training's keys and changes no state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..cover import Cover
from ..types import EVERYONE, Grant, Order, State
from .rounds import Record, Rounds
from .site import Scores


def score(sim: Rounds, state: State, clients: Collection[int], splits: Sequence[str] = ("val", "test")) -> list[Record]:
    """One record for each of the clients and splits: the served model; and one a split for the global model.

    Unseen clients have two: the model as it is served to them, and ``adapted`` to their own training part.
    """
    orders = [*wanted(sim, state, clients), everyone(sim, state)]
    found = sim.site.score(orders, splits)
    return [record for order, scores in zip(orders, found, strict=True) for record in told(sim, order, scores)]


def wanted(sim: Rounds, state: State, clients: Collection[int]) -> list[Order]:
    """The orders under which these clients' models are scored."""
    fleet = sim.fleet.drawn(state.round, sim.key.at("fleet"))
    orders = [sim.method.order(state, i, fleet, sim.model, sim.key, sim.run, use=True) for i in sorted(clients)]
    return orders + [replace(o, scalars={**o.scalars, "adapt": True}) for o in orders if o.client in sim.unseen]


def told(sim: Rounds, order: Order, scores: Scores) -> list[Record]:
    """The records of what came of scoring under an order: one for each split."""
    whole, unseen = order.client == EVERYONE, order.client in sim.unseen
    served = "adapted" if "adapt" in order.scalars else "served"
    key = sim.key.at("fleet")
    return [
        {
            "round": order.round,
            "model": "global" if whole else served,
            "client": None if whole else order.client,
            "tier": None if whole else sim.fleet.device(order.client, order.round, key).tier,
            "split": split,
            **({"population": "unseen"} if unseen else {}),
            **metrics,
        }
        for split, metrics in scores.items()
    ]


def everyone(sim: Rounds, state: State) -> Order:
    """The order under which the global model is scored on everybody's data."""
    cover = Cover.whole(dict(state.params))
    scalars = {"norm": sim.method.norm}
    return Order(
        sim.run, sim.key.seed, EVERYONE, state.round, dict(state.params), cover, Grant(Cover({})), scalars=scalars
    )
