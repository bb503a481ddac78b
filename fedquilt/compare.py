"""Methods beside each other: the same cohorts, splits and budgets, each run in a folder of its own.

    compare(Study.of({"methods": ["fedspu", "heterofl"], "seeds": 3}, baselines=True), "runs/mine")

``comparison.json`` holds the study, each run's folder, and for each data set and partition a row a
method and all pairs of methods.  A run that is finished is never repeated: its folder is named by its
settings, so a comparison may be killed, done again, and extended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from . import stats
from .history import whose
from .jobs import Task, do_all
from .key import Key
from .prepare import prepare, resolved
from .run import slug
from .schema import BadSetting
from .stats import Values, holm, interval, paired, worst_decile
from .store import files
from .store.lock import Lock
from .study import Entry, Study, is_finetuned

FORMAT = 1
SPLIT = "test"
COSTS = ("down", "up", "flops", "joules", "seconds")
Watch = Callable[[Entry | None, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to, as in comparison.json, and its folder."""

    record: dict[str, Any]
    folder: Path

    @property
    def failed(self) -> dict[str, str]:
        """The runs that failed, by folder, and why."""
        return {r["folder"]: r["failed"] for r in self.record["runs"] if r.get("failed")}


def check(study: Study) -> None:
    """Make all that the study is about, for its first seed, and forget it: what cannot be is refused now."""
    for entry in study.entries():
        if entry.seed == study.seeds[0]:
            prepare(entry.run)


def compare(study: Study, out: Path | str, jobs: int = 1, watch: Watch | None = None) -> Comparison:
    """Do the runs of a study that are not finished, ``jobs`` at a time, and set the methods beside each other."""
    folder = Path(out)
    entries, places = places_of(study, folder)
    if not all(finished(place) for place in places):
        check(study)
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / "run.lock")
    try:
        record: dict[str, Any] = {"format": FORMAT, "finished": False, "study": study.plain()}
        if not all(finished(place) for place in places):
            write(folder / "comparison.json", record)
        failed = do_runs(entries, places, jobs, watch)
        runs = [_told(e, p.relative_to(folder), failed.get(p)) for e, p in zip(entries, places, strict=True)]
        done = [(e, Done.read(p)) for e, p in zip(entries, places, strict=True) if p not in failed]
        record |= {
            "finished": not failed,
            "notices": study.notices,
            "runs": runs,
            "cells": [_cell(study, d, p, done) for d in study.data for p in study.partitions],
        }
        write(folder / "comparison.json", record)
        return Comparison(record, folder)
    finally:
        lock.release()


def places_of(study: Study, folder: Path) -> tuple[list[Entry], list[Path]]:
    """The runs of a study with all their settings, and where in a folder each is kept."""
    entries = [replace(e, run=resolved(e.run)) for e in study.entries()]
    return entries, [folder / "runs" / slug(e.run) for e in entries]


def finished(place: Path) -> bool:
    """Was the run in this folder done to its end?"""
    return (place / "result.json").is_file()


def do_runs(entries: Sequence[Entry], places: Sequence[Path], jobs: int, watch: Watch | None) -> dict[Path, str]:
    """Do the runs that are not finished, each folder once; why those failed that did."""
    todo = {p: e for e, p in zip(entries, places, strict=True) if not finished(p)}
    order = list(todo)
    if watch is not None:
        watch(None, {"runs": len(order)})
    told = None if watch is None else lambda i, record: watch(todo[order[i]], record)
    failed = do_all([Task(todo[p].run, p) for p in order], jobs, told)
    return {order[i]: reason for i, reason in failed.items()}


def study_of(folder: Path) -> Study:
    """The study of the comparison in a folder."""
    try:
        return Study.of(json.loads((folder / "comparison.json").read_text())["study"])
    except (OSError, ValueError, KeyError) as error:
        raise BadSetting(f"{folder} holds no comparison that can be read: {error}") from error


def _told(e: Entry, place: Path, failed: str | None) -> dict[str, Any]:
    said = {"label": e.label, "data": e.data, "partition": e.partition, "seed": e.seed, "folder": str(place)}
    return said | ({"failed": failed} if failed else {})


def write(path: Path, record: object) -> None:
    """A record as JSON, whole or not at all."""
    files.replace(path, json.dumps(record, indent=1).encode())


# ---- from finished runs to figures
@dataclass(frozen=True)
class Done:
    """A finished run: its figures, and each client's scores after the last round."""

    figures: Mapping[str, Any]
    clients: Mapping[int, Mapping[str, Any]]

    @staticmethod
    def read(place: Path) -> Done:
        """What the folder of a finished run says."""
        figures = json.loads((place / "result.json").read_text())
        lines = (json.loads(line) for line in (place / "scores.jsonl").read_text().splitlines())
        last = [r for r in lines if r["round"] == figures["rounds"] and r["model"] == "served" and r["split"] == SPLIT]
        last = [r for r in last if "population" not in r]
        return Done(figures, {r["client"]: r for r in last})


Runs = Mapping[str, Mapping[int, Done]]  # by label and seed


def _cell(study: Study, data: str, partition: str, done: Sequence[tuple[Entry, Done]]) -> dict[str, Any]:
    """One data set and partition: a row a method, and every pair of methods."""
    runs: dict[str, dict[int, Done]] = {label: {} for label in study.methods}
    for e, d in done:
        if (e.data, e.partition) == (data, partition):
            runs[e.label][e.seed] = d
    runs = {label: by_seed for label, by_seed in runs.items() if by_seed}
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
        "metric": metric,
        "split": SPLIT,
        "whose": whose({d.figures["rounds"] for d in each}, max(len(d.clients) for d in each)) if each else {},
        "local": next((n for n, spec in study.methods.items() if spec["name"] == "local" and n in runs), None),
        "finetuned": next((n for n, spec in study.methods.items() if is_finetuned(spec) and n in runs), None),
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
