"""How good it is, for whom: every client's served model on its own data, and the global model on everybody's.

A figure says whose it is (``who``), of which model (``served``, ``global``), on which split, after
which round.  Evaluating draws nothing from the training's keys and changes no state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

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
    orders = [sim.method.order(state, i, fleet, sim.model, sim.key, sim.run) for i in sorted(clients)]
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


def summary(records: Iterable[Mapping[str, Any]], metric: str = "accuracy") -> dict[str, dict[str, Any]]:
    """For each split, what the records of one round say of a metric (``loss`` where it is not measured).

    ``mean`` is over clients, unweighted; ``weighted`` by number of samples; ``worst_decile`` the mean
    over the worst tenth of the clients (rounded up); ``spread`` the standard deviation over clients.
    Clients that never train are not among them: ``unseen`` says how they fare, before and after adaptation.
    """
    out: dict[str, dict[str, Any]] = {}
    rows = list(records)
    for split in dict.fromkeys(r["split"] for r in rows):
        here = [r for r in rows if r["split"] == split]
        mine = [r for r in here if r["model"] == "served" and "population" not in r]
        whole = [r for r in here if r["model"] == "global"]
        use = metric if mine and metric in mine[0] else "loss"
        values = [r[use] for r in mine]
        worst = sorted(values, reverse=use == "loss")[: -(-len(values) // 10)]
        n = sum(r["n"] for r in mine)
        out[split] = {
            "metric": use,
            "clients": len(mine),
            "mean": fmean(values),
            "weighted": sum(r[use] * r["n"] for r in mine) / n if n else None,
            "spread": pstdev(values),
            "worst_decile": fmean(worst),
            "tiers": {t: fmean(r[use] for r in mine if r["tier"] == t) for t in sorted({r["tier"] for r in mine})},
            "global": whole[0][use] if whole else None,
        }
        if mine and "macro_f1" in mine[0]:
            out[split]["macro_f1"] = fmean(r["macro_f1"] for r in mine)
        if new := [r for r in here if r.get("population") == "unseen"]:
            before, after = ([r[use] for r in new if r["model"] == model] for model in ("served", "adapted"))
            out[split]["unseen"] = {"clients": len(before), "before": fmean(before), "after": fmean(after)}
    return out
