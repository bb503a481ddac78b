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
from pathlib import Path
from typing import Any

from .cells import Done, cell
from .jobs import Task, do_all
from .prepare import prepare, resolved
from .run import slug
from .schema import BadSetting
from .store import files
from .store.lock import Lock
from .study import Entry, Study

FORMAT = 1
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
        runs = [_told(e, p.relative_to(folder), None) for e, p in zip(entries, places, strict=True)]
        record: dict[str, Any] = {"format": FORMAT, "finished": False, "study": study.plain(), "runs": runs}
        if not all(finished(place) for place in places):
            write(folder / "comparison.json", record)
        failed = do_runs(entries, places, jobs, watch)
        runs = [_told(e, p.relative_to(folder), failed.get(p)) for e, p in zip(entries, places, strict=True)]
        done: dict[tuple[str, str], dict[str, dict[int, Done]]] = {}
        for e, p in zip(entries, places, strict=True):
            if p not in failed:
                done.setdefault((e.data, e.partition), {}).setdefault(e.label, {})[e.seed] = Done.read(p)
        record |= {
            "finished": not failed,
            "notices": study.notices,
            "runs": runs,
            "cells": [cell(study.methods, d, p, done.get((d, p), {})) for d in study.data for p in study.partitions],
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
