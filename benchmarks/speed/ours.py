"""This library: ``fedquilt:METHOD:WORKERS`` (0 workers: the serial engine, in the process itself)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import fedquilt
from fedquilt.conduct import at_work
from fedquilt.prepare import prepare
from fedquilt.store import InRam, OnDisk

from .contest import serve
from .field import Field, work_of


class Ours:
    version = fedquilt.__version__

    def __init__(self, folder: Path, method: str, workers: int, memory: Path) -> None:
        about = Field(folder).about
        work = work_of(about["name"], (folder / "tiny").exists())
        engine = f"processes:workers={workers}" if workers else "serial"
        run = work.run(method, rounds=len(about["cohorts"]), engine=engine)
        self.made = prepare(run, OnDisk(memory, 256 << 20, durable=False) if workers else InRam())
        self.world = at_work(self.made)
        self.sim = self.world.__enter__()
        self.now = self.sim.begin()

    def round(self, n: int) -> tuple[int | None, int | None]:
        self.now, told = self.sim.round(self.now)
        lost = [c for c in told.clients if c["outcome"] != "accepted"]
        if lost:
            raise RuntimeError(f"{len(lost)} clients failed: {lost[0]['reason']}")
        return sum(c["steps"] for c in told.clients), sum(c["samples"] for c in told.clients)

    def score(self) -> dict[str, float]:
        """As in a run: every client's own model and the global one, on validation and test parts."""
        splits = ("test",) if self.made.data.doubles else ("val", "test")
        found = self.sim.judge(self.now.state, self.made.data.clients, splits, False)
        return {"loss": next(float(r["loss"]) for r in found if r["model"] == "global" and r["split"] == "test")}


def enter(name: str, folder: Path, cores: int) -> None:
    _, method, workers = name.split(":")
    with TemporaryDirectory(prefix="fedquilt-") as scratch:
        serve(lambda: Ours(folder, method, int(workers), Path(scratch)))
