"""A run's journals, read while another process may still write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..history import COSTS, summary


class Tail:
    """A file of JSON lines, of which each call of :meth:`new` gives those that came since the last."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def new(self) -> list[dict[str, Any]] | None:
        """The whole lines that are new; None if the file was cut back: it is then read from its beginning again."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0
                    return None
                file.seek(self.offset)
                whole = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        self.offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]


@dataclass
class Journals:
    """What the journals of a run have said so far: a record a round, and the summary of each round that was scored."""

    folder: Path
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    scores: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tails = {kind: Tail(self.folder / f"{kind}.jsonl") for kind in ("rounds", "scores")}
        self._last: list[dict[str, Any]] = []  # the lines of the round that was scored last: more of them may come

    def read(self) -> None:
        """Take in what is new."""
        new = {kind: tail.new() for kind, tail in self._tails.items()}
        if None in new.values():
            self.rounds, self.scores = {}, {}
            self.__post_init__()
            new = {kind: tail.new() or [] for kind, tail in self._tails.items()}
        self.rounds |= {r["round"]: r for r in new["rounds"] or ()}
        for record in new["scores"] or ():
            if self._last and self._last[0]["round"] != record["round"]:
                self._sum()
                self._last = []
            self._last.append(record)
        self._sum()

    def _sum(self) -> None:
        served = any(r["model"] == "served" and "population" not in r for r in self._last)
        if served and all(v is not None for r in self._last for v in (r.get("accuracy", 0.0), r["loss"])):
            self.scores[self._last[0]["round"]] = summary(self._last)

    @property
    def total(self) -> dict[str, float]:
        """What all rounds have cost."""
        return {k: sum(r[k] for r in self.rounds.values()) for k in COSTS}


def figures(journals: Journals, round: int) -> dict[str, float]:
    """What is said of a round, by name: what a chart has a line for."""
    out: dict[str, float | None] = {}
    if r := journals.rounds.get(round):
        out |= {"train/loss": r["loss"], "clock/virtual_seconds": r["clock"], "peak/bytes": r["peak"]}
        out |= {f"cost/{k}": r[k] for k in COSTS}
        out |= {"clients/asked": len(r["asked"]), "clients/merged": len(r["merged"])}
    for split, said in journals.scores.get(round, {}).items():
        metric = said["metric"]
        names: Mapping[str, str] = {
            "mean": metric,
            "weighted": f"{metric}_by_samples",
            "worst_decile": f"{metric}_worst_tenth",
            "spread": f"{metric}_spread",
            "global": f"{metric}_global_model",
            "macro_f1": "macro_f1",
        }
        out |= {f"{split}/{name}": said.get(key) for key, name in names.items()}
        out |= {f"{split}/{metric}_tier_{tier}": v for tier, v in said["tiers"].items()}
    return {name: float(v) for name, v in out.items() if v is not None}
