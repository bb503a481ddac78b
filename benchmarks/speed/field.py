"""What all contestants of a workload are given, in files: data, the first model, cohorts, the orders of samples."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .work import Work


def write(work: Work, rounds: int, folder: Path) -> None:
    """The files, made once."""
    from fedquilt.fleet import Fleet
    from fedquilt.parts.select import Uniform
    from fedquilt.prepare import prepare
    from fedquilt.types import EVERYONE, Handle, State

    made = prepare(work.run(rounds=rounds))
    data, key, model = made.data, made.sim.key, made.sim.model
    ids = data.clients
    devices = Fleet(made.sim.fleet.devices)
    cohorts = [Uniform()(State(r, {}), devices, work.cohort, key.at(r, "select")) for r in range(rounds)]
    sizes = data.sizes()
    orders = [
        key.at(r, "work", i, "train", "epoch", e).permutation(sizes[i]).numpy()
        for r, cohort in enumerate(cohorts) for i in cohort for e in range(work.epochs)
    ]  # fmt: skip
    x, y = data.data.x, data.data.y
    rows, ends = data.parts.rows, data.parts.ends
    folder.mkdir(parents=True, exist_ok=True)
    test = data[Handle(EVERYONE, "test")]
    for name, array in {
        "x": x[rows["train"]].numpy(), "y": y[rows["train"]].numpy(), "ends": ends["train"].numpy(),
        "orders": np.concatenate(orders), "test_x": test[0].numpy(), "test_y": test[1].numpy(),
    }.items():  # fmt: skip
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "params.npz", **{k: v.numpy() for k, v in model.params().items()})
    about = {k: v for k, v in asdict(work).items() if k not in ("methods", "settings", "peers")}
    said = {**about, "cohorts": cohorts, "clients": len(ids), "spec": dict(model.spec)}
    (folder / "about.json").write_text(json.dumps(said))


class Field:
    """The files, read; arrays are mapped, so that all contestants share one copy in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text())

    def array(self, name: str) -> Any:
        return np.load(self.folder / f"{name}.npy", mmap_mode="c")

    @cached_property
    def x(self) -> Any:
        return self.array("x")

    @cached_property
    def y(self) -> Any:
        return self.array("y")

    @cached_property
    def ends(self) -> Any:
        return self.array("ends")

    @cached_property
    def params(self) -> dict[str, Any]:
        return dict(np.load(self.folder / "params.npz"))

    def client(self, i: int) -> tuple[Any, Any]:
        a, b = self.ends[i], self.ends[i + 1]
        return self.x[a:b], self.y[a:b]

    @cached_property
    def _orders(self) -> dict[tuple[int, int], Any]:
        flat, at, out = self.array("orders"), 0, {}
        for r, cohort in enumerate(self.about["cohorts"]):
            for i in cohort:
                n = int(self.ends[i + 1] - self.ends[i])
                out[r, i] = flat[at : at + n * self.about["epochs"]].reshape(self.about["epochs"], n)
                at += out[r, i].size
        return out

    def orders(self, round: int, client: int) -> Any:
        """An order of the client's samples for each of its epochs."""
        return self._orders[round, client]


def work_of(name: str, tiny: bool) -> Work:
    """A workload by name."""
    from .work import WORKS  # here, since a peer's process needs no more than the files

    found = next(w for w in WORKS if w.name == name)
    return found.tiny() if tiny else found
