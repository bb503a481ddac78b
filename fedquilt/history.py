"""What happened in a run: a record a round, one a client and round, one a score; and what they come to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a report reads histories without torch
    from .cover import Params
    from .store import Journal

Record = dict[str, Any]
KINDS = ("rounds", "clients", "scores")
HELD = "holdings.jsonl"  # what each client holds
COSTS = ("down", "up", "flops", "joules", "seconds")


@dataclass(eq=False)
class History:
    """The records in memory, and in journals where the run has a folder."""

    rounds: list[Record] = field(default_factory=list)
    clients: list[Record] = field(default_factory=list)
    scores: list[Record] = field(default_factory=list)
    journals: Mapping[str, Journal] = field(default_factory=dict)

    def add(self, kind: str, *records: Record) -> None:
        """Append records of a kind."""
        getattr(self, kind).extend(records)
        if self.journals:
            for record in records:
                self.journals[kind].append(record)

    def at(self, round: int | None = None) -> dict[str, dict[str, Any]]:
        """The summary of the scores after a round (None: the last that was scored)."""
        if round is None:
            round = max((r["round"] for r in self.scores), default=0)
        return summary(r for r in self.scores if r["round"] == round)

    def scored(self) -> list[int]:
        """The rounds after which there are scores."""
        return sorted({r["round"] for r in self.scores})

    def best(self) -> tuple[int, str]:
        """The first round with the best mean over clients, and the split that says so: validation, if there is one."""
        means = {r: {s: (v["metric"], v["mean"]) for s, v in self.at(r).items()} for r in self.scored()}
        split = "val" if all("val" in m for m in means.values()) else "test"
        signed = {r: -m[split][1] if m[split][0] == "loss" else m[split][1] for r, m in means.items() if split in m}
        return max(signed, key=lambda r: (signed[r], -r), default=0), split

    def costs(self, rounds: int) -> Record:
        """What the first so many rounds took."""
        return {k: sum(r[k] for r in self.rounds[:rounds]) for k in COSTS}

    def outcomes(self) -> dict[str, int]:
        """What became of the orders: how many replies were accepted, late, rejected by which rule, ..."""
        words = [c["outcome"] for c in self.clients]
        return {w: words.count(w) for w in sorted(set(words))}

    def failure(self) -> Record:
        """The first reason why a client's work failed, if any did."""
        return next(({"failure": c["reason"]} for c in self.clients if c["outcome"] == "failed"), {})

    def early(self) -> Record | None:
        """The figures of the round after which the stop's condition was met, whether or not the run ended there."""
        reached = next((r["reached"] for r in self.rounds if r["reached"] is not None), None)
        return None if reached is None else {"round": reached, "scores": self.at(reached), **self.costs(reached)}

    def figures(self, rounds: int, stopped: str | None) -> Record:
        """What it has come to after so many rounds: see :meth:`Result.figures`."""
        best, split = self.best()
        clients = {r["client"] for r in self.scores if "population" not in r} - {None}
        return {
            "rounds": rounds,
            "stopped": stopped,
            **self.costs(rounds),
            "outcomes": self.outcomes(),
            **self.failure(),
            "early": self.early(),
            "scores": self.at(),
            "best": {"round": best, "picked on": split, "scores": self.at(best)},
            "whose": whose({rounds}, len(clients)),
        }


@dataclass(frozen=True, eq=False)
class Result:
    """What a run came to: its record (as in run.json), the last global model, and the history."""

    record: Record
    params: Params
    rounds: int
    stopped: str | None
    history: History
    folder: Path | None = None

    def figures(self) -> Record:
        """The last scores, those of the round that was best on validation, whose they are, and what they cost."""
        return self.history.figures(self.rounds, self.stopped)


def whose(rounds: Collection[int], clients: int) -> dict[str, str]:
    """What every figure of accuracy must say of itself; the split stands beside it."""
    last = f"round {max(rounds)}" if len(rounds) == 1 else f"the last round ({min(rounds)} to {max(rounds)})"
    return {
        "population": f"all {clients} clients, selected or not, each on its own data",
        "model": "served: the one that a client would use now",
        "moment": f"after {last}, with no further training but what serving takes",
        "pick": "the last round",
        "mean": "over clients, unweighted",
    }


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
