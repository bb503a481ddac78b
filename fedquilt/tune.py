"""The same search for every method: as many trials each, over one space, judged on validation data only.

    tune(Study.of({"methods": ["fedspu"]}, baselines=True), {"lr": "0.01..0.3"}, "runs/search")

``tune.json`` holds the space, every trial and the choice; ``compare`` takes the choice from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from .compare import FORMAT, Watch, do_runs, finished, write
from .methods import METHODS, build
from .prepare import prepare, resolved
from .run import slug
from .schema import BadSetting, nearest, settings
from .store.lock import Lock
from .study import Entry, Study

Space = Mapping[str, list[Any]]

USUAL = "0.01,0.03,0.1,0.3"  # learning rates, where nothing else is asked for
POINTS = 5


def space_of(over: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each setting: a list, ``"0.01,0.1"``, or a range, ``"0.001..0.1:3"`` (3, by equal factors)."""
    return {name: _values(name, said) for name, said in (over or {"lr": USUAL}).items()}


def _values(name: str, said: Any) -> list[Any]:
    if isinstance(said, str) and ".." in said:
        ends, _, points = said.partition(":")
        try:
            low, high = map(float, ends.split(".."))
            n = int(points or POINTS)
        except ValueError:
            raise BadSetting(f"a range for {name} is LOW..HIGH or LOW..HIGH:POINTS, not {said!r}", name) from None
        if not (0 < low < high and isfinite(high) and n >= 2):
            raise BadSetting(
                f"a range for {name} goes up from a number above 0, in 2 points or more, not {said!r}", name
            )
        return [float(f"{low * (high / low) ** (i / (n - 1)):.4g}") for i in range(n)]
    values = [v.strip() for v in said.split(",") if v.strip()] if isinstance(said, str) else said
    if not isinstance(values, list) or not values:
        raise BadSetting(f"the values of {name} are a list such as {USUAL}, not {said!r}", name)
    return values


def trials_of(study: Study, space: Space) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """For each method, what is tried: the searched settings, and the method with them."""
    out: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for label, spec in study.methods.items():
        known = settings(METHODS[spec["name"]])
        for name in space:
            if name not in known:
                raise BadSetting(
                    f"{label} has no setting {name!r} to search: every method gets the same trials; "
                    f"{nearest(name, known)}Its settings are: {', '.join(known)}",
                    name,
                )
        out[label] = []
        for values in product(*space.values()):
            made = dict(build({**spec, **dict(zip(space, values, strict=True))}).spec)
            tried = {name: made[name] for name in space}
            if tried not in [t for t, _ in out[label]]:
                out[label].append((tried, made))
    return out


def tune(
    study: Study,
    over: Mapping[str, Any],
    out: Path | str,
    jobs: int = 1,
    watch: Watch | None = None,
    on_test: bool = False,
) -> dict[str, Any]:
    """Try every method with every point of the space; the best mean over clients on validation data is chosen."""
    folder, space = Path(out), space_of(over)
    if len(study.data) * len(study.partitions) > 1:
        raise BadSetting("a search is on one data set in one partition", "data")
    trials = trials_of(study, space)
    entries = [
        (label, i, replace(e, label=_called(label, tried), run=resolved(replace(e.run, method=made))))
        for label, many in trials.items()
        for i, (tried, made) in enumerate(many)
        for e in replace(study, methods={label: made}).entries()
    ]
    runs: list[Entry] = [e for _, _, e in entries]
    places = [folder / "runs" / slug(e.run) for e in runs]
    _check(entries, on_test)
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock(folder / "run.lock")
    try:
        asked = {"study": study.plain(), "over": {k: list(v) for k, v in space.items()}, "on_test": on_test}
        planned = [
            {"label": e.label, "seed": e.seed, "folder": str(p.relative_to(folder))}
            for e, p in zip(runs, places, strict=True)
        ]
        record: dict[str, Any] = {"format": FORMAT, "finished": False, **asked, "runs": planned}
        if not all(map(finished, places)):
            write(folder / "tune.json", record)
        failed = do_runs(runs, places, jobs, watch)
        told = []
        for label, many in trials.items():
            for i, (tried, _) in enumerate(many):
                mine = [p for (n, j, _), p in zip(entries, places, strict=True) if (n, j) == (label, i)]
                told.append(_trial(label, tried, mine, failed, folder, on_test))
        chosen = {label: dict(_best(label, told, trials)) for label in trials}
        split = "test" if on_test else "val"
        record |= {"finished": not failed, "split": split, "pick": "the last round", "trials": told, "chosen": chosen}
        write(folder / "tune.json", record)
        return record
    finally:
        lock.release()


def _called(label: str, tried: Mapping[str, Any]) -> str:
    return " ".join([label, *(f"{k}={v}" for k, v in tried.items())])


def _check(entries: list[tuple[str, int, Entry]], on_test: bool) -> None:
    """Refuse what cannot be before any work: above all a search on test data."""
    first: dict[str, Entry] = {}
    for label, _, e in entries:
        first.setdefault(label, e)
    for e in first.values():
        if prepare(e.run).data.doubles and not on_test:
            raise BadSetting(
                f"with split {e.run.split} the test part doubles as validation, and a search would see the test data: "
                "give validation a share, such as --split 60/10/30, or say --on-test",
                "split",
            )


def _trial(
    label: str, tried: Mapping[str, Any], places: list[Path], failed: Mapping[Path, str], folder: Path, on_test: bool
) -> dict[str, Any]:
    """What a trial came to, over its seeds, on validation data: nothing else is looked at."""
    said: dict[str, Any] = {
        "label": label,
        "tried": dict(tried),
        "folders": [str(p.relative_to(folder)) for p in places],
    }
    bad = [failed[p] for p in places if p in failed]
    if bad:
        return said | {"failed": bad[0]}
    scores = [json.loads((p / "result.json").read_text())["scores"] for p in places]
    mine = [s["test" if on_test else "val"] for s in scores]
    means = [s["mean"] for s in mine]
    score = fmean(means) if all(m is not None and isfinite(m) for m in means) else None
    return said | {"metric": mine[0]["metric"], "score": score, "by_seed": means}


def _best(label: str, told: list[dict[str, Any]], trials: Mapping[str, Any]) -> Mapping[str, Any]:
    """The method as the best trial has it; the first of equals."""
    mine = [t for t in told if t["label"] == label]
    good = [i for i, t in enumerate(mine) if t.get("score") is not None]
    if not good:
        return {}
    sign = -1 if mine[good[0]]["metric"] == "loss" else 1
    made: Mapping[str, Any] = trials[label][max(good, key=lambda i: (sign * mine[i]["score"], -i))][1]
    return made


def tuned(study: Study, search: Path) -> Study:
    """The study with each method's searched settings as the search in this folder or file has chosen them."""
    path = search / "tune.json" if search.is_dir() else search
    try:
        record = json.loads(path.read_text())
        chosen, space = record["chosen"], record["over"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadSetting(f"{search} holds no finished search that can be read: {error}", "tuned") from error
    methods = {}
    for label, spec in study.methods.items():
        found = chosen.get(label)
        if not found or found["name"] != spec["name"]:
            raise BadSetting(f"{label} is not in the search in {search}, which has: {', '.join(chosen)}", "tuned")
        methods[label] = {**spec, **{k: found[k] for k in space}}
    return replace(study, methods=methods)


def search_of(folder: Path) -> tuple[Study, dict[str, Any], bool]:
    """What the search in a folder is: its study, its space, and whether it may see test data."""
    record = json.loads((folder / "tune.json").read_text())
    return Study.of(record["study"]), record["over"], record["on_test"]
