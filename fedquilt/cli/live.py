"""Progress on a terminal; silence where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..compare import Watch as Hear
from ..run import Watch
from ..study import Entry
from ..words import amount, clock


@dataclass
class Seen:
    """What has been seen of a run in this process."""

    round: int = 0
    down: int = 0
    up: int = 0
    spent: str = ""
    score: str = ""
    worked: bool = False

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in a record of a round, or of its scores."""
        self.worked = True
        self.round = max(self.round, record["round"])
        if "scored" in record:
            split, scores = list(record["scored"].items())[-1]
            self.score = f"{scores['metric']} {scores['mean']:.3f} ({split}, round {record['round']})"
            return
        self.down += record["down"]
        self.up += record["up"]
        loss = "" if record["loss"] is None else f"loss {record['loss']:.3f}  "
        self.spent = f"{loss}{clock(record['clock'])}  down {amount(self.down, 'B')}  up {amount(self.up, 'B')}"

    @property
    def line(self) -> str:
        """Loss, virtual time, bytes and the last score."""
        return "  ".join(s for s in (self.spent, self.score) if s)


class Bars:
    """Bars on standard error, if that is a terminal and nobody asked for quiet."""

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True)
        self.progress: Progress | None = None
        if not quiet and console.is_terminal:
            self.progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(16),
                MofNCompleteColumn(),
                TextColumn("{task.fields[said]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Bars:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self.progress:
            self.progress.stop()

    def add(self, title: str, total: int | None) -> TaskID | None:
        """A bar more."""
        return self.progress.add_task(title, total=total, said="") if self.progress else None

    def set(self, bar: TaskID | None, done: int, said: str = "") -> None:
        """How far it is, and what is to be said of it."""
        if self.progress and bar is not None:
            self.progress.update(bar, completed=done, said=said)

    def drop(self, bar: TaskID | None) -> None:
        """Take a bar away."""
        if self.progress and bar is not None:
            self.progress.remove_task(bar)


def notice(text: str) -> None:
    """What a person should know though the work goes on."""
    print(f"fedquilt: {text}", file=sys.stderr)


class Live:
    """Watches one run: a bar with round, loss, accuracy, virtual time and bytes; ``also`` hears it all too."""

    def __init__(self, title: str, rounds: int, bars: Bars, also: Watch | None = None) -> None:
        self.seen, self.bars, self.also = Seen(), bars, also
        self.bar = bars.add(title, rounds)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Take in what a run says."""
        if self.also:
            self.also(record)
        if "notice" in record:
            notice(record["notice"])
            return
        self.seen.take(record)
        self.bars.set(self.bar, self.seen.round, self.seen.line)


class Many:
    """Watches several runs: a bar for all, and one for each that is at work; ``also`` hears it all too."""

    def __init__(self, title: str, bars: Bars, also: Hear | None = None) -> None:
        self.bars, self.title, self.also = bars, title, also
        self.all: TaskID | None = None
        self.done = 0
        self.lives: dict[int, Live] = {}

    def __call__(self, entry: Entry | None, record: Mapping[str, Any]) -> None:
        """Take in what one of the runs says (None: what is said of all)."""
        if self.also:
            self.also(entry, record)
        if entry is None:
            self.all = self.bars.add(self.title, record["runs"])
            self.bars.set(self.all, 0, "runs")
            return
        if "ended" in record:
            live = self.lives.pop(id(entry), None)
            self.bars.drop(live.bar if live else None)
            self.done += 1
            self.bars.set(self.all, self.done, "runs")
            return
        if id(entry) not in self.lives:
            called = " ".join([entry.label, entry.data, entry.partition, f"seed {entry.seed}"])
            self.lives[id(entry)] = Live(f"  {called}", entry.run.rounds, self.bars)
        self.lives[id(entry)](record)
