"""What a section's runs come to: curves over their scored rounds, and captions for all its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from ..cells import Done, cell
from ..history import Record
from .chart import Axis
from .read import Section, Told
from .table import Caption

SPLITS = {"val": "validation", "test": "test"}
COSTS: Mapping[str, Axis] = {
    "rounds": Axis("rounds"),
    "bytes": Axis("bytes, down and up", "B"),
    "FLOPs": Axis("floating point operations", "FLOP"),
    "virtual seconds": Axis("virtual time", "s"),
    "joules": Axis("energy", "J"),
}
MEASURES = {"mean": "mean", "worst tenth": "worst_decile", "global model": "global"}


@dataclass(frozen=True)
class Curve:
    """A run at each of its scored rounds: what it had cost by then, and how good it was."""

    costs: Mapping[str, Sequence[float]]
    scores: Sequence[Record]

    @property
    def rounds(self) -> list[int]:
        """The scored rounds."""
        return [int(r) for r in self.costs["rounds"]]


def curve(told: Told, split: str) -> Curve:
    """The curve of one run."""
    sums = dict.fromkeys(COSTS, 0.0)
    spent = {0: dict(sums)}
    for r in told.history.rounds:
        sums = {
            "rounds": float(r["round"]),
            "bytes": sums["bytes"] + r["down"] + r["up"],
            "FLOPs": sums["FLOPs"] + r["flops"],
            "virtual seconds": float(r["clock"]),
            "joules": sums["joules"] + r["joules"],
        }
        spent[r["round"]] = sums
    scored = [n for n in told.at if n in spent and split in told.at[n]]
    return Curve({k: [spent[n][k] for n in scored] for k in COSTS}, [told.at[n][split] for n in scored])


@dataclass(frozen=True, eq=False)
class Sums:
    """A section's runs, and whose figures its figures are."""

    section: Section
    split: str

    @cached_property
    def names(self) -> list[str]:
        """The methods' labels, in the order of their series."""
        return list(self.section.runs)

    @cached_property
    def doubles(self) -> bool:
        """Does the test part double as validation?"""
        return any(t.record["data"]["test doubles as validation"] for t in self.section.all)

    @cached_property
    def curves(self) -> dict[str, dict[int, Curve]]:
        """By label and seed; those that have scores."""
        each = {n: {s: curve(t, self.split) for s, t in by_seed.items()} for n, by_seed in self.section.runs.items()}
        return {n: {s: c for s, c in by_seed.items() if c.scores} for n, by_seed in each.items()}

    @cached_property
    def metric(self) -> str:
        """What is measured."""
        found = [c.scores[-1]["metric"] for by_seed in self.curves.values() for c in by_seed.values()]
        return str(found[0]) if found else "accuracy"

    @cached_property
    def lower(self) -> bool:
        """Is less of it better?"""
        return self.metric == "loss"

    @cached_property
    def measure(self) -> Axis:
        """The axis of what is measured."""
        return Axis(self.metric, "rate" if self.lower else "share")

    @cached_property
    def counted(self) -> list[Told]:
        """The runs that the final figures are about: those that have ended, or all if none has."""
        done = [t for t in self.section.all if t.finished]
        return done or [t for t in self.section.all if t.scored]

    @cached_property
    def cell(self) -> Record | None:
        """The methods beside each other, as the comparison has it, or from the runs that there are."""
        if self.section.cell and self.section.cell["rows"]:
            return self.section.cell
        runs: dict[str, dict[int, Done]] = {}
        for label, by_seed in self.section.runs.items():
            for seed, t in by_seed.items():
                if t in self.counted and "test" in t.at[max(t.at)]:
                    figures = t.history.figures(max(t.at), None)
                    runs.setdefault(label, {})[seed] = Done(figures, t.clients("test"), str(t.settings["partition"]))
        methods = {label: next(iter(self.section.runs[label].values())).method for label in runs}
        first = self.section.all[0]
        return cell(methods, first.data, str(first.settings["partition"]), runs) if runs else None

    def caption(self, note: str = "", **other: str) -> Caption:
        """What a figure says of itself, where it differs from the rest in ``other``."""
        clients = sorted({len(t.clients(self.split)) for t in self.section.all if t.scored})
        many = " or ".join(map(str, clients)) or "no"
        unseen = max((len(t.record["data"]["unseen"]) for t in self.section.all), default=0)
        population = f"all {many} clients, selected or not, each on its own data"
        population += f"; the {unseen} that never train are not among them" if unseen else ""
        doubled = ", which doubles as validation" if self.doubles and self.split == "test" else ""
        said = {
            "population": population,
            "model": "served: the one that a client would use now",
            "moment": self.last,
            "split": f"each client's own {SPLITS[self.split]} part{doubled}",
            "pick": "the last round",
        }
        return Caption(**(said | other), note=note)

    @cached_property
    def last(self) -> str:
        """When the final figures were taken."""
        rounds = {max(t.at) for t in self.counted if t.at}
        when = f"round {max(rounds)}" if len(rounds) == 1 else "the last scored round of each run"
        return f"after {when}, with no further training but what serving takes"


def over(values: Sequence[float | None]) -> float | None:
    """The mean of what there is."""
    found = [v for v in values if v is not None]
    return fmean(found) if found else None


def common(by_seed: Mapping[int, Curve]) -> list[int]:
    """The rounds that are scored under every seed."""
    each = [set(c.rounds) for c in by_seed.values()]
    return sorted(set.intersection(*each)) if each else []


def picked(c: Curve, rounds: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """What stands at these rounds."""
    at = dict(zip(c.rounds, values, strict=True))
    return [at[r] for r in rounds]
