"""The tables that end a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ..words import amount, clock, count, repeated, share

SPLITS = {"val": "validation", "test": "test"}
WIDE = 160  # columns, where nobody's terminal sets a limit


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for any table in a file."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=WIDE)


def table(title: str) -> Table:
    """An empty table in the house's style."""
    return Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")


def print_json(value: object) -> None:
    """A value as JSON on standard output."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def title(settings: Mapping[str, Any]) -> str:
    """A run in a line."""
    method = settings["method"]
    name = method["name"] if isinstance(method, Mapping) and "name" in method else str(method)
    data = settings["data"] if isinstance(settings["data"], str) else settings["data"]["made in Python"]
    clients = count(settings["clients"], "client")
    shared = "" if settings["partition"] == "auto" else f" {settings['partition']},"
    return f"{name} on {data}: {clients},{shared} seed {settings['seed']}"


def print_run(record: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """What a run came to: the figures, whose they are, and what they cost."""
    scores = figures["scores"]
    metric = next(iter(scores.values()))["metric"] if scores else "accuracy"
    made = table(title(record["run"]))
    made.add_column(metric)
    early = figures.get("early") or {"round": figures["rounds"], "scores": {}}
    went_on = early["round"] < figures["rounds"]
    for split in scores:
        made.add_column(SPLITS.get(split, split), justify="right")
    for split in early["scores"] if went_on else ():
        made.add_column(f"{SPLITS.get(split, split)}, stopped after {early['round']}", justify="right")
    before = _rows(early["scores"]) if went_on else {}
    for name, value in _rows(scores).items():
        made.add_row(name, *value, *before.get(name, ()))
    out = console()
    out.print(made)
    lines = [caption(record, figures), cost(figures)]
    if went_on:
        lines.append(f"Stopped early it would have taken {cost({**early, 'rounds': early['round']})}.")
    if {*figures.get("outcomes", ())} - {"accepted"}:
        lines.append("Replies: " + ", ".join(f"{n} {word}" for word, n in figures["outcomes"].items()) + ".")
    if "failure" in figures:
        lines.append(escape(f"The first failure: {figures['failure']}"))
    for line in lines:
        out.print(Padding(line, (0, 2)), highlight=False)


def table_of_runs(runs: Sequence[Mapping[str, Any]]) -> None:
    """What would be run, and where it would be kept."""
    made = table(count(len(runs), "run"))
    for name in ("method", "data", "partition", "seed", "folder", ""):
        made.add_column(name)
    for r in runs:
        said = (r["label"], r["data"], r["partition"], str(r["seed"]), r["folder"])
        made.add_row(*said, "finished" if r["finished"] else "to do")
    console().print(made)


def _rows(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    each = list(scores.values())
    rows = {
        "mean over clients ± spread": [f"{share(s['mean'])} ± {share(s['spread'])}" for s in each],
        "by number of samples": [share(s["weighted"]) for s in each],
        "worst tenth of clients": [share(s["worst_decile"]) for s in each],
    }
    if each and "macro_f1" in each[0]:
        rows["macro-F1"] = [share(s["macro_f1"]) for s in each]
    tiers = each[0]["tiers"] if each else {}
    if len(tiers) > 1:
        rows |= {f"tier {t}": [share(s["tiers"].get(t)) for s in each] for t in tiers}
    if each and "unseen" in each[0]:
        many = count(each[0]["unseen"]["clients"], "unseen client")
        for when in ("before", "after"):
            rows[f"{many}, {when} adapting"] = [share(s["unseen"][when]) for s in each]
    return rows | {"the global model, everybody's data": [share(s["global"]) for s in each]}


def caption(record: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Whose figures these are."""
    said = figures["whose"]
    told = f"Population: {said['population']}. Model: {said['model']}. Moment: {said['moment']}. Pick: {said['pick']}."
    if figures["stopped"]:
        told += f" Stopped early: {figures['stopped']}."
    if record["data"]["test doubles as validation"]:
        told += " The test part doubles as validation."
    if record["data"]["repeats"]["samples"]:
        told += f" {repeated(record['data']['repeats'])}."
    return told


def cost(figures: Mapping[str, Any]) -> str:
    """What a run cost, in a line."""
    return (
        f"{count(figures['rounds'], 'round')}, {clock(figures['seconds'])} of virtual time; "
        f"down {amount(figures['down'], 'B')}, up {amount(figures['up'], 'B')}; "
        f"{amount(figures['flops'], 'FLOP')}; {amount(figures['joules'], 'J')}"
    )
