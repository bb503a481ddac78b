"""Run folders as they stand, finished or not, read without torch: one, or those of a comparison or a search."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..history import HELD, KINDS, History, Record, summary
from ..schema import BadSetting

DEEP = 4  # folders below the one that is asked for
FREE = ("method", "seed", "engine", "data_dir")  # settings that do not part one table from another


@dataclass(frozen=True, eq=False)
class Told:
    """What the folder of a run tells."""

    folder: Path
    record: Record
    history: History
    held: list[Record]
    label: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """The run's settings."""
        settings: Mapping[str, Any] = self.record["run"]
        return settings

    @property
    def method(self) -> Mapping[str, Any]:
        """The method with all its settings; one that Python made has no name but its text."""
        method = self.settings["method"]
        return method if "name" in method else {"name": "own method"}

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings["seed"])

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.record["data"]["name"])

    @property
    def finished(self) -> bool:
        """Was it done to its end?"""
        return (self.folder / "result.json").is_file()

    @property
    def rounds(self) -> int:
        """How many rounds there have been."""
        return int(self.history.rounds[-1]["round"]) if self.history.rounds else 0

    @cached_property
    def scored(self) -> dict[int, list[Record]]:
        """The scores after each round that has them."""
        found: dict[int, list[Record]] = defaultdict(list)
        for r in self.history.scores:
            found[r["round"]].append(r)
        return dict(sorted(found.items()))

    @cached_property
    def at(self) -> dict[int, dict[str, Record]]:
        """What the scores after each round come to, by split."""
        return {round: summary(records) for round, records in self.scored.items()}

    def clients(self, split: str) -> dict[int, Record]:
        """Each client's last scores: the served model on its own part."""
        last = self.scored[max(self.scored)] if self.scored else []
        mine = [r for r in last if r["model"] == "served" and r["split"] == split and "population" not in r]
        return {r["client"]: r for r in mine}


def read(folder: Path, label: str = "") -> Told:
    """What the folder of a run tells."""
    record = json_of(folder / "run.json")
    try:
        rounds, clients, scores = (list(_lines(folder / f"{kind}.jsonl")) for kind in KINDS)
        return Told(folder, record, History(rounds, clients, scores), list(_lines(folder / HELD)), label)
    except (ValueError, KeyError) as error:
        raise BadSetting(
            f"the records of {folder} are damaged ({error}); `fedquilt resume {folder}` mends them"
        ) from error


def _lines(path: Path) -> Iterator[Record]:
    """The records of a file; the last line of a run that is at work may be half there."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_bytes().split(b"\n")[:-1])


def json_of(path: Path) -> Record:
    """The record in a file of JSON."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise BadSetting(f"{path} is not readable as JSON ({error})") from error


# ---- several runs
@dataclass(frozen=True, eq=False)
class Section:
    """Runs that may stand in one table: by label and seed.  ``cell`` holds their statistics, where they are known."""

    title: str
    runs: Mapping[str, Mapping[int, Told]]
    cell: Record | None = None
    missing: int = 0  # runs that have not ended

    @property
    def all(self) -> list[Told]:
        """All its runs."""
        return [t for by_seed in self.runs.values() for t in by_seed.values()]


@dataclass(frozen=True, eq=False)
class Book:
    """What a report is about; a search is judged on ``split`` and has ``trials``."""

    title: str
    sections: list[Section]
    split: str = "test"
    notices: tuple[str, ...] = ()
    trials: Record | None = None

    @property
    def runs(self) -> list[Told]:
        """All runs, in the order of the sections."""
        return [t for s in self.sections for t in s.all]


def book(folders: Sequence[Path]) -> Book:
    """What stands in these folders."""
    if len(folders) == 1:
        folder = folders[0]
        if (folder / "run.json").exists():
            return _one(folder)
        if (folder / "comparison.json").exists():
            return _comparison(folder)
        if (folder / "tune.json").exists():
            return _search(folder)
    found = [told for folder in folders for told in _under(folder, DEEP)]
    if not found:
        names = ", ".join(map(str, folders))
        raise BadSetting(f"{names} holds no run, comparison or search: there is no run.json in it or below it")
    return Book(_names(folders), _parted(list({t.record["id"]: t for t in found}.values())))


def _names(folders: Sequence[Path]) -> str:
    return ", ".join(f.resolve().name for f in folders)


def _one(folder: Path) -> Book:
    told = read(folder)
    name = _label(told, ())
    title = f"{name} on {told.data}"
    return Book(title, [Section(_about(told), {name: {told.seed: told}}, missing=int(not told.finished))])


def _about(told: Told) -> str:
    return f"{told.data}, {told.settings['partition']}"


def _comparison(folder: Path) -> Book:
    record = json_of(folder / "comparison.json")
    cells = {(c["data"], c["partition"]): c for c in record.get("cells", ())}
    sections = []
    places = record.get("runs", ())
    for data, partition in dict.fromkeys((r["data"], r["partition"]) for r in places):
        here = [r for r in places if (r["data"], r["partition"]) == (data, partition)]
        begun = [
            (r, read(folder / r["folder"], r["label"])) for r in here if (folder / r["folder"] / "run.json").exists()
        ]
        runs: dict[str, dict[int, Told]] = {}
        for r, told in begun:
            runs.setdefault(r["label"], {})[r["seed"]] = told
        if runs:
            missing = len(here) - sum(t.finished for _, t in begun)
            sections.append(Section(_about(begun[0][1]), runs, cells.get((data, partition)), missing))
    if not sections:
        raise BadSetting(f"no run of the comparison in {folder} has begun; go on with: fedquilt resume {folder}")
    return Book("Comparison", sections, notices=tuple(record.get("notices", ())))


def _search(folder: Path) -> Book:
    record = json_of(folder / "tune.json")
    runs: dict[str, dict[int, Told]] = {}
    missing = 0
    for r in record.get("runs", ()):
        place = folder / r["folder"]
        missing += not (place / "result.json").exists()
        if (place / "run.json").exists():
            told = read(place, r["label"])
            runs.setdefault(r["label"], {})[told.seed] = told
    if not runs:
        raise BadSetting(f"no trial of the search in {folder} has begun; go on with: fedquilt resume {folder}")
    first = next(iter(next(iter(runs.values())).values()))
    split = "test" if record["on_test"] else "val"
    return Book("Search", [Section(_about(first), runs, missing=missing)], split, trials=record)


def _under(folder: Path, deep: int) -> Iterator[Told]:
    """The runs in a folder and below it; those of searches are no results."""
    if (folder / "run.json").is_file():
        yield read(folder)
    elif deep and folder.is_dir() and not (folder / "tune.json").exists():
        for below in sorted(folder.iterdir()):
            if below.is_dir():
                yield from _under(below, deep - 1)


def _parted(found: Sequence[Told]) -> list[Section]:
    """Runs of the same settings but for method and seed stand in one section."""
    shared: dict[str, list[Told]] = defaultdict(list)
    for t in found:
        shared[json.dumps({k: v for k, v in t.settings.items() if k not in FREE}, sort_keys=True)].append(t)
    keys = [json.loads(k) for k in shared]
    differ = [k for k in keys[0] if len({json.dumps(s.get(k)) for s in keys}) > 1 and k not in ("data", "partition")]
    sections = []
    for settings, runs in zip(keys, shared.values(), strict=True):
        by_label: dict[str, dict[int, Told]] = {}
        for t in runs:
            by_label.setdefault(_label(t, runs), {})[t.seed] = t
        title = ", ".join([_about(runs[0]), *(f"{k} {settings[k]}" for k in differ if settings[k] != "")])
        sections.append(Section(title, by_label, missing=sum(not t.finished for t in runs)))
    return sections


def _label(told: Told, others: Sequence[Told]) -> str:
    """The method, with the settings in which it differs from others of its name."""
    twins = [t.method for t in others if t.method["name"] == told.method["name"]]
    mine = [k for k, v in told.method.items() if any(t.get(k) != v for t in twins)]
    return " ".join([str(told.method["name"]), *(f"{k}={told.method[k]}" for k in mine)])
