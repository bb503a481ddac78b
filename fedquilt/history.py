"""What happened in a run: a record a round, one a client and round, one a score; and what they come to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cover import Params
from .drive.score import summary
from .store import Journal

Record = dict[str, Any]
KINDS = ("rounds", "clients", "scores")


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
        total = {k: sum(r[k] for r in self.history.rounds) for k in ("down", "up", "flops", "joules", "seconds")}
        best, split = self.history.best()
        return {
            "rounds": self.rounds,
            "stopped": self.stopped,
            **total,
            "scores": self.history.at(),
            "best": {"round": best, "picked on": split, "scores": self.history.at(best)},
            "whose": whose(
                {self.rounds}, len({r["client"] for r in self.history.scores if "population" not in r} - {None})
            ),
        }


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
