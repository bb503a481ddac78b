"""``list`` and ``show``: what there is.  Listing reads the sources and imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from ..run import record_of
from ..schema import BadSetting, nearest
from .cards import TABLES, Card, cards, find, unmarked
from .flags import COMMON
from .tables import console, print_json, print_run, table
from .weights import sizes

FACTS = {"methods": ("family", "paper"), "models": ("parameters", "groups", "FLOP a sample", "bytes")}
NOTES = {"models": "training on a sample, and sending, at widths 0.2, 0.4, 0.6, 0.8, 1"}
NUMBERS = FACTS["models"]


def _plain(card: Card) -> dict[str, Any]:
    """A card, fit for JSON; of a model with its sizes as numbers."""
    if card.kind != "models":
        return card.plain()
    return {k: v for k, v in card.plain().items() if k not in FACTS["models"]} | sizes()[card.name]


def list_kinds(kinds: Sequence[str], as_json: bool) -> int:
    """List the things of these kinds."""
    for kind in kinds:
        if kind not in TABLES:
            raise BadSetting(
                f"nothing is kept under {kind!r}; {nearest(kind, TABLES)}There are: {', '.join(TABLES)}", "kind"
            )
    if as_json:
        said = {kind: [_plain(c) for c in cards(kind).values()] for kind in kinds}
        print_json(said[kinds[0]] if len(kinds) == 1 else said)
        return 0
    for kind in kinds:
        facts = FACTS.get(kind, ())
        made = table(f"{kind}: {NOTES[kind]}" if kind in NOTES else kind)
        for column in ("name", *facts, "what it is"):
            made.add_column(column, no_wrap=column == "name", justify="right" if column in NUMBERS else "left")
        for card in cards(kind).values():
            made.add_row(Text(card.name, "bold"), *(card.facts[f] for f in facts), Text(card.summary))
        console().print(made)
    return 0


def show_name(name: str, as_json: bool) -> int:
    """Show what has this name, or the run in a folder of this name."""
    found = find(name)
    if not found and (Path(name) / "run.json").exists():
        return _show_run(Path(name), as_json)
    for mark in ("comparison.json", "tune.json"):
        if not found and (Path(name) / mark).exists():
            return _show_many(Path(name), mark, as_json)
    if not found:
        known = [n for kind in TABLES for n in cards(kind)]
        raise BadSetting(
            f"nothing is called {name!r}, and there is no run in a folder of that name; {nearest(name, known)}"
            f"`fedquilt list` shows all names"
        )
    if as_json:
        said = [_plain(c) | _live(c) for c in found]
        print_json(said[0] if len(said) == 1 else said)
        return 0
    for card in found:
        _show_card(card)
    return 0


def _live(card: Card) -> dict[str, Any]:
    """What only the thing itself can say: a method's record with all its parts."""
    if card.kind != "methods":
        return {}
    from ..methods import build

    return {"record": repr(build({"name": card.name}))}


def _show_card(card: Card) -> None:
    out = console()
    out.print(Text(f"{card.name} ({card.kind})", "bold"))
    for fact, text in card.facts.items():
        out.print(Text(f"  {fact}: {text}"))
    out.print()
    out.print(Text(unmarked(card.doc or card.summary)))
    if card.settings:
        made = table("settings")
        for column in ("name", "type", "default", ""):
            made.add_column(column)
        for s in card.settings:
            default = s.default if s.default is not None else "needs a value"
            what = COMMON.get(s.name, "") if card.kind == "methods" else ""
            made.add_row(Text(s.name, "bold"), Text(s.type), Text(default), Text(what))
        out.print(made)
    for text in _live(card).values():
        out.print(Text(text))


def _show_run(folder: Path, as_json: bool) -> int:
    """A run folder: its settings, its method and its last figures."""
    record = record_of(folder)
    figures = _read(folder / "result.json") if (folder / "result.json").exists() else None
    if as_json:
        print_json({"folder": str(folder), "record": record, "result": figures})
        return 0
    made = table(f"the run in {folder}")
    made.add_column("setting")
    made.add_column("value")
    for name, value in record["run"].items():
        made.add_row(name, Text(json.dumps(value) if not isinstance(value, str) else value or "(the method's own)"))
    console().print(made)
    console().print(Text(record["method"]))
    if figures:
        print_run(record, figures)
    else:
        rounds = len((folder / "rounds.jsonl").read_text().splitlines()) if (folder / "rounds.jsonl").exists() else 0
        print(f"not finished: {rounds} of {record['run']['rounds']} rounds; go on with: fedquilt resume {folder}")
    return 0


def _show_many(folder: Path, mark: str, as_json: bool) -> int:
    """A comparison or a search: its tables, if it is finished."""
    record = _read(folder / mark)
    if as_json:
        print_json({"folder": str(folder), **record})
    elif "cells" not in record and "trials" not in record:
        print(f"not finished; go on with: fedquilt resume {folder}")
    else:
        from .verdict import print_comparison, print_search

        (print_comparison if "cells" in record else print_search)(record)
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except ValueError as error:
        raise BadSetting(f"{path} is not readable as JSON ({error})") from error
