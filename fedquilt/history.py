"""What happened in a run: a record a round, one a client and round, one a score; and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
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
        """The last scores and what they cost, in one flat record."""
        last = self.history.at()
        total = {k: sum(r[k] for r in self.history.rounds) for k in ("down", "up", "flops", "joules", "seconds")}
        return {"rounds": self.rounds, "stopped": self.stopped, **total, "scores": last}
