"""How good it is, for whom: every client's served model on its own data, and the global model on everybody's.

A figure says whose it is (``who``), of which model (``served``, ``global``), on which split, after
which round.  Evaluating draws nothing from the training's keys and changes no state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from ..cover import Cover
from ..engine import Done, Job
from ..fit import SGD, Fit
from ..norm import plain
from ..types import EVERYONE, Client, Grant, Memory, Order, Served, Serving, State, Work
from .sim import Record, Simulator


@dataclass(frozen=True)
class _Global:
    """Serves the server's model as it is; statistics that it does not have are taken over everybody's training data."""

    batch: int = 512

    def __call__(self, order: Order, client: Client) -> Work:
        """The global model does not train: it is scored."""
        raise TypeError("the global model is scored, not trained")

    def grant(self, cover: Cover, model: Any) -> Grant:
        """Nothing comes back."""
        return Grant(Cover({}))

    def serve(self, order: Order, client: Client) -> Serving:
        """The server's parameters, whole."""
        params = client.model.params() | plain(order.params, 1.0)
        if order.norm not in ("post-hoc", "personal"):
            return Served(client.model, params, order.norm)
        fit = Fit(
            client.model, client.task, params, client.train, client.key, SGD(0.0), 0, batch=self.batch, norm="post-hoc"
        )
        fitted = yield fit
        return Served(client.model, fitted.params, "post-hoc")


def score(
    sim: Simulator, state: State, clients: Collection[int], splits: Sequence[str] = ("val", "test")
) -> list[Record]:
    """One record for each of the clients and splits: the served model; and one a split for the global model."""
    jobs = []
    for i in sorted(clients):
        order = sim.method.order(state, i, sim.fleet, sim.model, sim.key, sim.run)
        jobs.append(Job(sim.method.local, order, sim.client(order, "serve"), tuple(splits)))
    jobs.append(_global_job(sim, state, splits))
    records = []
    for job, done in zip(jobs, sim.engine.run(jobs), strict=True):
        if not isinstance(done, Done):
            raise done.error
        everyone = job.order.client == EVERYONE
        for split, scored in done.value.items():  # type: ignore[attr-defined]
            records.append(
                {
                    "round": state.round,
                    "model": "global" if everyone else "served",
                    "client": None if everyone else job.order.client,
                    "tier": None if everyone else sim.fleet.devices[job.order.client].tier,
                    "split": split,
                    **scored.metrics,
                }
            )
    return records


def _global_job(sim: Simulator, state: State, splits: Sequence[str]) -> Job:
    cover = Cover.whole(dict(state.params))
    scalars = {"norm": sim.method.norm}
    order = Order(
        sim.run, sim.key.seed, EVERYONE, state.round, dict(state.params), cover, Grant(Cover({})), scalars=scalars
    )
    device = next(iter(sim.fleet.devices.values()))
    key = sim.key.at(state.round, "serve", "everyone")
    counts = sim.shares.counts(EVERYONE)
    client = Client(EVERYONE, sim.model, sim.task, Memory(), device, key, counts)
    return Job(_Global(), order, client, tuple(splits))


def summary(records: Iterable[Mapping[str, Any]], metric: str = "accuracy") -> dict[str, dict[str, Any]]:
    """For each split, what the records of one round say of a metric (``loss`` where it is not measured).

    ``mean`` is over clients, unweighted; ``weighted`` by number of samples; ``worst_decile`` the mean
    over the worst tenth of the clients (rounded up); ``spread`` the standard deviation over clients.
    """
    out: dict[str, dict[str, Any]] = {}
    rows = list(records)
    for split in dict.fromkeys(r["split"] for r in rows):
        mine = [r for r in rows if r["split"] == split and r["model"] == "served"]
        whole = [r for r in rows if r["split"] == split and r["model"] == "global"]
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
    return out
