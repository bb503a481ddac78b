"""``board``: the runs in a folder, live in the terminal; without one, a table."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.text import Text

from ..log.sight import Sight, runs_in, spark
from ..schema import BadSetting
from ..words import amount, clock, share
from .tables import console, print_json, table

COLUMNS = ("state", "run", "method", "round", "test, by round", "last", "sent", "compute", "virtual time")
COLOURS = {"at work": "#E69F00", "finished": "#009E73", "stopped": "#CC79A7"}
LEFT_OUT = ("method", "data")


def board(folder: Path, every: float, as_json: bool) -> int:
    """Show the runs in a folder."""
    if not folder.is_dir():
        raise BadSetting(f"{folder} is no folder; runs are kept in ./runs, or where --out says", "folder")
    if not every > 0:
        raise BadSetting(f"--every is a number of seconds above 0, not {every}", "every")
    seen = Seen(folder)
    seen.look()
    if as_json:
        print_json([s.plain() for s in seen.sights.values()])
        return 0
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        made = table(f"runs in {folder}")
        for name in COLUMNS:
            made.add_column(name, no_wrap=True)
        for sight in seen.sights.values():
            made.add_row(*row(sight, folder))
        console().print(made)
        return 0
    if find_spec("textual") is None:
        raise BadSetting("a live board needs textual: pip install 'fedquilt[board]'; `fedquilt board | cat` does not")
    from .screen import Board

    Board(seen, every).run()
    return 0


class Seen:
    """All runs in a folder, by their folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sights: dict[Path, Sight] = {}

    def look(self) -> None:
        """Take in what is new, and forget what was removed."""
        known, self.sights = self.sights, {}
        for path in runs_in(self.folder):
            with suppress(ValueError, KeyError, OSError):  # just being made or removed, or no run of ours
                sight = known.get(path) or Sight(path)
                sight.look()
                self.sights[path] = sight


def row(sight: Sight, folder: Path) -> tuple[Text, ...]:
    """A run in a line."""
    means, total = [m for _, m in sight.means()], sight.journals.total
    where = sight.folder.relative_to(folder) if sight.folder != folder else Path(folder.name)
    return (
        Text(sight.state, COLOURS[sight.state]),
        Text(str(where)),
        Text(sight.method, "bold"),
        Text(f"{sight.round}/{sight.settings['rounds']}", justify="right"),
        Text(spark(means)),
        Text(share(means[-1] if means else None)),
        Text(amount(total["down"] + total["up"], "B"), justify="right"),
        Text(amount(total["flops"], "FLOP"), justify="right"),
        Text(clock(total["seconds"]), justify="right"),
    )


def details(sight: Sight) -> Text:
    """All that is to be said of a run."""
    out = Text()

    def line(name: str, value: Any) -> None:
        out.append(f"{name}: ", "bold")
        out.append(f"{value}\n")

    line(str(sight.folder), f"{sight.state}, {sight.round} of {sight.settings['rounds']} rounds")
    for split, said in sight.journals.scores.get(max(sight.journals.scores, default=0), {}).items():
        told = f"{share(said['mean'])} ± {share(said['spread'])}, worst tenth {share(said['worst_decile'])}"
        line(f"{said['metric']} ({split}, served, mean over {said['clients']} clients)", told)
        if len(said["tiers"]) > 1:
            line("  by tier", ", ".join(f"{t} {share(v)}" for t, v in said["tiers"].items()))
    means = sight.means()
    if means:
        line("test, by round", ", ".join(f"{r}: {share(m)}" for r, m in means[-10:]))
    total = sight.journals.total
    line("sent", f"down {amount(total['down'], 'B')}, up {amount(total['up'], 'B')}")
    line("spent", f"{amount(total['flops'], 'FLOP')}, {amount(total['joules'], 'J')}, {clock(total['seconds'])}")
    last = sight.journals.rounds.get(sight.round)
    if last:
        line("last round", ", ".join(f"{n} {outcome}" for outcome, n in last["outcomes"].items()) or "nobody was there")
    if sight.state == "stopped":
        line("go on with", f"fedquilt resume {sight.folder}")
    out.append(f"\n{sight.record['method']}\n\n")
    line(
        "settings",
        ", ".join(f"{k} {v}" for k, v in sight.settings.items() if k not in LEFT_OUT and v not in ("", None)),
    )
    return out
