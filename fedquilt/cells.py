"""What finished runs come to beside each other: for one data set and partition, a row a method and all pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from . import stats
from .history import COSTS, whose
from .run import settings_of
from .stats import Values, holm, interval, paired, worst_decile
from .study import is_finetuned

if TYPE_CHECKING:
    from .key import Key

SPLIT = "test"


@dataclass(frozen=True)
class Done:
    """A finished run: its figures, each client's scores after the last round, and how its data were shared out."""

    figures: Mapping[str, Any]
    clients: Mapping[int, Mapping[str, Any]]
    partition: str

    @staticmethod
    def read(place: Path) -> Done:
        """What the folder of a finished run says."""
        figures = json.loads((place / "result.json").read_text())
        lines = (json.loads(line) for line in (place / "scores.jsonl").read_text().splitlines())
        last = [r for r in lines if r["round"] == figures["rounds"] and r["model"] == "served" and r["split"] == SPLIT]
        last = [r for r in last if "population" not in r]
        return Done(figures, {r["client"]: r for r in last}, str(settings_of(place)["partition"]))


Runs = Mapping[str, Mapping[int, Done]]  # by label and seed


def cell(methods: Mapping[str, Mapping[str, Any]], data: str, partition: str, runs: Runs) -> dict[str, Any]:
    """One data set and partition: a row a method, and every pair of methods."""
    from .key import Key  # here: a report of a finished comparison needs no torch

    runs = {label: runs[label] for label in methods if runs.get(label)}
    each = [d for r in runs.values() for d in r.values()]
    metric = each[0].figures["scores"][SPLIT]["metric"] if each else "accuracy"
    lower, key = metric == "loss", Key(0).at("compare", data, partition)
    values = {label: _values(by_seed, metric) for label, by_seed in runs.items()}
    pairs = [
        {"a": a, "b": b, **paired(values[a], values[b], key.at(a, b), lower)}
        for a, b in combinations(values, 2)
        if values[a].keys() & values[b].keys()
    ]
    for pair, p in zip(pairs, holm([p["p"] for p in pairs]), strict=True):
        pair["p_holm"] = p
    return {
        "data": data,
        "partition": partition,
        "shared": each[0].partition if each else partition,  # what `auto` came to
        "metric": metric,
        "split": SPLIT,
        "whose": whose({d.figures["rounds"] for d in each}, max(len(d.clients) for d in each)) if each else {},
        "local": next((n for n, spec in methods.items() if spec["name"] == "local" and n in runs), None),
        "finetuned": next((n for n, spec in methods.items() if is_finetuned(spec) and n in runs), None),
        "rows": [_row(label, runs[label], values[label], metric, key.at(label)) for label in runs],
        "pairs": pairs,
    }


def _values(by_seed: Mapping[int, Done], metric: str) -> Values:
    return {(seed, client): r[metric] for seed, d in by_seed.items() for client, r in d.clients.items()}


def _row(label: str, by_seed: Mapping[int, Done], values: Values, metric: str, key: Key) -> dict[str, Any]:
    scores = [d.figures["scores"][SPLIT] for d in by_seed.values()]
    groups = stats.by_seed(values)
    each = [float(x.mean()) for x in groups.values()]
    tenths = [worst_decile(x, metric == "loss") for x in groups.values()]
    best = [d.figures["best"]["scores"][SPLIT]["mean"] for d in by_seed.values()]
    whole = [s["global"] for s in scores if s["global"] is not None]
    val = [d.figures["scores"]["val"]["mean"] for d in by_seed.values() if "val" in d.figures["scores"]]
    return {
        "label": label,
        "seeds": list(by_seed),
        "mean": fmean(each),
        "interval": list(interval(values, key)),
        "by_seed": each,
        "spread_seeds": pstdev(each),
        "spread_clients": fmean(s["spread"] for s in scores),
        "weighted": fmean(s["weighted"] for s in scores),
        "worst_decile": fmean(tenths),
        "global": fmean(whole) if whole else None,
        "macro_f1": fmean(s["macro_f1"] for s in scores) if all("macro_f1" in s for s in scores) else None,
        "validation": fmean(val) if val else None,
        "best_on_validation": fmean(best),
        "tiers": {t: fmean(s["tiers"][t] for s in scores) for t in scores[0]["tiers"]},
        **{c: fmean(d.figures[c] for d in by_seed.values()) for c in COSTS},
        "rounds": [d.figures["rounds"] for d in by_seed.values()],
        "stopped": [d.figures["stopped"] for d in by_seed.values()],
    }


def against(cell: Mapping[str, Any], label: str, other: str | None) -> dict[str, Any] | None:
    """How a method compares with another in a cell: the pair, seen from ``label``."""
    for pair in cell["pairs"]:
        if (pair["a"], pair["b"]) == (label, other):
            return dict(pair)
        if (pair["b"], pair["a"]) == (label, other):
            low, high = pair["interval"]
            turned = {"difference": -pair["difference"], "interval": [-high, -low], "a": label, "b": other}
            return {**pair, **turned, "better": pair["worse"], "worse": pair["better"]}
    return None
