"""Runs in a folder, seen from outside while they are at work; importing this loads no torch."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .tail import Journals

DEEPEST = 4  # a run of a comparison in a folder of comparisons lies so deep
BLOCKS = "▁▂▃▄▅▆▇█"


def runs_in(folder: Path) -> list[Path]:
    """The folders in a folder, or itself, that hold a run."""
    return sorted(_runs(folder, DEEPEST))


def _runs(folder: Path, left: int) -> Iterator[Path]:
    if (folder / "run.json").is_file():
        yield folder
    elif left and folder.is_dir():
        for inner in folder.iterdir():
            if inner.is_dir() and not inner.is_symlink():
                yield from _runs(inner, left - 1)


class Sight:
    """What can be seen of the run in a folder; :meth:`look` again sees what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record: dict[str, Any] = json.loads((folder / "run.json").read_text())
        self.journals = Journals(folder)
        self.state = "stopped"

    def look(self) -> None:
        """Take in what is new."""
        self.journals.read()
        if (self.folder / "result.json").is_file():
            self.state = "finished"
        else:
            self.state = "at work" if locked(self.folder / "run.lock") else "stopped"

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings."""
        return dict(self.record["run"])

    @property
    def method(self) -> str:
        """The method's name."""
        method = self.settings["method"]
        return str(method.get("name", "own")) if isinstance(method, dict) else str(method)

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return max(self.journals.rounds, default=0)

    @property
    def metric(self) -> str:
        """What is measured."""
        return next((s["metric"] for at in self.journals.scores.values() for s in at.values()), "accuracy")

    def means(self) -> list[tuple[int, float]]:
        """The mean over clients at each round that was scored, on the test part."""
        return [(r, at["test"]["mean"]) for r, at in sorted(self.journals.scores.items()) if "test" in at]

    def plain(self) -> dict[str, Any]:
        """All that is seen, fit for JSON."""
        means = self.means()
        return {
            "folder": str(self.folder),
            "state": self.state,
            "method": self.method,
            "data": self.settings["data"] if isinstance(self.settings["data"], str) else "own",
            "seed": self.settings["seed"],
            "round": self.round,
            "rounds": self.settings["rounds"],
            "metric": self.metric,
            "test": [{"round": r, "mean": m} for r, m in means],
            **self.journals.total,
        }


def locked(path: Path) -> bool:
    """Is somebody at work in the folder of this lock?  Asking takes the lock for a moment at most, shared."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def spark(values: list[float], width: int = 16) -> str:
    """Values as blocks: the last ``width`` of them, the smallest the lowest."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((v - low) * scale)] for v in shown)
