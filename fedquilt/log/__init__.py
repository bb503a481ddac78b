"""Trackers: what a run's journals say, told to TensorBoard, MLflow or Weights & Biases, each loaded only if asked.

    with fedquilt.tracked(["tensorboard"], "runs/mine") as watch:
        fedquilt.run(Run(...), "runs/mine", watch)

A tracker is told a round once that round is durable, in order, and never twice: ``track.json`` in the run's
folder says how far each was told.  So a run that is resumed goes on in the same chart, and a
finished run may be told to one more tracker.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..schema import BadSetting, unknown

if TYPE_CHECKING:
    from ..run import Watch
    from .tail import Journals

TOLD = "track.json"
Say = Callable[[str], object]
Cell = tuple[str, str, str, int]


class Tracker(Protocol):
    """Where figures go.  ``mark`` is what it finds the run by when it is asked again (empty: it needs nothing)."""

    mark: str

    def tell(self, round: int, figures: Mapping[str, float]) -> None:
        """The figures of a round."""

    def end(self, finished: bool) -> None:
        """All that there is to tell for now was told."""


Maker = Callable[[Path, Mapping[str, str], str], Tracker]  # of a run's folder, its settings, and the mark

# The packages that each needs, by the name that they are imported by.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def checked(names: Sequence[str]) -> list[str]:
    """These trackers, if there are such and what they need is installed; before any work."""
    asked = [n.strip() for name in names for n in name.split(",") if n.strip()]
    for name in asked:
        if name not in NEEDS:
            error = unknown("tracker", name, NEEDS)
            error.key = "track"
            raise error
        missing = [n for n in NEEDS[name] if find_spec(n) is None]
        if missing:
            raise BadSetting(
                f"--track {name} needs {' and '.join(missing)}: pip install 'fedquilt[{name}]'; a run's own journals "
                "need nothing",
                "track",
            )
    return list(dict.fromkeys(asked))


class Tracking:
    """Watches a run in a folder and tells the trackers what its journals say.

    A tracker that fails is given up, which is said; the run goes on, and what it was not told it
    is told the next time.
    """

    def __init__(self, names: Sequence[str], folder: Path, say: Say = warnings.warn) -> None:
        self.names, self.folder, self.say = checked(names), folder, say
        self.trackers: dict[str, Tracker] = {}
        self.told: dict[str, dict[str, Any]] = {}
        self.journals: Journals | None = None

    def __call__(self, record: Mapping[str, Any]) -> None:
        """A record of the run; that of a round is given once the round is durable."""
        if "clock" in record:
            self._tell(record["round"])

    def close(self) -> None:
        """Tell what is left to be told, if the run is finished, and let the trackers go."""
        finished = (self.folder / "result.json").is_file()
        if finished:
            self._tell(None)
        for name in list(self.trackers):
            with self._spared(name):
                self.trackers.pop(name).end(finished)

    @contextmanager
    def _spared(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.names = [n for n in self.names if n != name]
            self.trackers.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self.say(f"{name} is told no more of {self.folder}, which goes on: {reason}")

    def _tell(self, upto: int | None) -> None:
        from .tail import Journals

        if not self.names:
            return
        if self.journals is None:
            self.journals = Journals(self.folder)
            path = self.folder / TOLD
            self.told = json.loads(path.read_text()) if path.is_file() else {}
        self.journals.read()
        rounds = sorted(self.journals.rounds.keys() | self.journals.scores.keys())
        for name in list(self.names):
            known = self.told.get(name, {"mark": "", "round": -1})
            new = [r for r in rounds if r > known["round"] and (upto is None or r <= upto)]
            with self._spared(name):
                self._tell_one(name, known["mark"], new)
        half = self.folder / f"{TOLD}.tmp"
        half.write_text(json.dumps(self.told))
        half.replace(self.folder / TOLD)

    def _tell_one(self, name: str, mark: str, new: Sequence[int]) -> None:
        from .tail import figures

        assert self.journals is not None
        if new and name not in self.trackers:
            from .trackers import MAKERS

            self.trackers[name] = MAKERS[name](self.folder, settings_in(self.folder), mark)
        for round in new:
            self.trackers[name].tell(round, figures(self.journals, round))
            self.told[name] = {"mark": self.trackers[name].mark, "round": round}


class Trackings:
    """Watches the runs of a comparison: ``places`` are their folders, by label, data set, partition and seed."""

    def __init__(self, names: Sequence[str], places: Mapping[Cell, Path], say: Say = warnings.warn) -> None:
        self.names, self.places, self.say = checked(names), places, say
        self.open: dict[Path, Tracking] = {}

    def __call__(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """A record of one of the runs."""
        place = self.places[cell]
        if place not in self.open:
            self.open[place] = Tracking(self.names, place, self.say)
        self.open[place](record)
        if "ended" in record:
            self.open.pop(place).close()

    def close(self) -> None:
        """Tell what is left to be told of all that are finished."""
        for place in self.places.values():
            self.open.pop(place, Tracking(self.names, place, self.say)).close()


def settings_in(folder: Path) -> dict[str, str]:
    """The settings of the run in a folder as texts, those of its method by ``method.NAME``."""
    record = json.loads((folder / "run.json").read_text())
    said = {**record["run"], "parts": record["method"], "id": record["id"], **record["versions"]}
    method = said.pop("method")
    flat = {f"method.{k}": v for k, v in method.items()} if isinstance(method, Mapping) else {"method": method}
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in (said | flat).items()}


@contextmanager
def tracked(names: Sequence[str], folder: Path | str, say: Say = warnings.warn) -> Iterator[Watch]:
    """A watch that tells these trackers of the run in a folder."""
    tracking = Tracking(names, Path(folder), say)
    try:
        yield tracking
    except BadSetting:
        tracking.names = []  # refused: what the folder holds is not what was asked for
        raise
    finally:
        tracking.close()
