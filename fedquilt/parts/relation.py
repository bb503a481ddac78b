"""FLrce's relationship map: whose update leads where whose led; and a selection by it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal

import torch
from torch import Tensor

from ..fleet import Fleet
from ..key import Key
from ..types import Json, Part, Reply, State
from .likeness import ROWS, Updates, approach, cosines, flat, held, sketched, speaks, update_of
from .select import Uniform


def exploits(seed: int, round: int, explore: float, warmup: int = 0) -> bool:
    r"""Is this a round of the most important clients, not of any?

    It explores with probability :math:`\phi^{t-1}`, rounds counted from t = 1, and in the first ``warmup`` anyway.
    """
    return round >= warmup and Key(seed).at(round, "explore").uniform() >= explore**round


@dataclass(frozen=True)
class Related(Part):
    r"""FLrce's selection: the clients whose updates agree most with those of all others.

    .. math::
        \Omega_{kj} = \begin{cases} \cos(u_k, u_j) & t_j \ge t - 1 \\
        \max\{1 - d_j(w^t + u_k) / d_j(w^t), -1\} & \text{else} \end{cases}, \qquad
        H_k = \sum_{j \ne k} \Omega_{kj}

    with d_j the distance from the line along j's last update.  Only rows of those who replied change;
    who never did has H = 0.  In an exploit round the n with the largest H are chosen, equals in random
    order; in the others the cohort is the one that every method meets.

    ``origin``: the line runs through the model on which j's update was made, or, as the formula has it
    literally, through ``zero``.  ``smooth``: the share of the old value that stays in the new.
    ``statistics``: running statistics are part of an update.  ``sketch``: vectors are kept and compared as
    random projections to so many numbers, and what a client did not hold counts as not moved.
    ``spill``: a folder for the vectors; empty: they stay in RAM.
    """

    explore: float = 0.98
    warmup: int = 0
    origin: Literal["model", "zero"] = "model"
    smooth: float = 0.0
    statistics: bool = False
    sketch: int = 0
    spill: str = ""

    def __post_init__(self) -> None:
        for name in ("explore", "smooth"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, not {getattr(self, name)}")
        if self.sketch < 0:
            raise ValueError(f"a sketch has a number of entries, or 0 for none, not {self.sketch}")
        if self.spill and not os.access(self.spill, os.W_OK):
            raise ValueError(f"vectors cannot be spilled to {self.spill}: it is no folder that can be written to")

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """Those of largest H, or any."""
        if not exploits(key.seed, state.round, self.explore, self.warmup):
            return Uniform()(state, fleet, n, key)
        importance = importances(state.notes.get("select"))
        ids = sorted(fleet.devices)
        shuffled = [ids[j] for j in key.permutation(len(ids)).tolist()]
        return sorted(sorted(shuffled, key=lambda i: -importance.get(i, 0.0))[:n])

    def tell(self, note: Any) -> Mapping[str, Json]:
        """How many clients are on the map."""
        return {"known": len(note["last"])} if note else {}

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The map: each client's last update and where it began, and a row of relations each."""
        if not replies:
            return note
        names = speaks(dict(state.params), self.statistics)
        fresh = self._fresh(state, replies, names)
        old = {j: said | {"moved": self._stored(said["moved"])} for j, said in note["last"].items()} if note else {}
        last = old | {r.client: fresh["last"][r.client] for r in replies}
        bases = (note["bases"] if note else {}) | fresh["bases"]
        used = {said["base"] for said in last.values()}
        kept = {"last": last, "bases": {k: self._stored(v) for k, v in bases.items() if k in used}}
        rows = dict(note["rows"]) if note else {}
        mine = [r.client for r in replies]
        values = dict(self._relations(kept, state, mine, flat(dict(state.params), names)))
        others = sorted(values)
        table = torch.stack([values[j] for j in others], 1).double()
        for k, row in zip(mine, table, strict=True):
            rows[k] = self._row(rows.get(k), k, others, row)
        return kept | {"rows": rows}

    def _fresh(self, state: State, replies: Sequence[Reply], names: Sequence[str]) -> dict[str, Any]:
        """What these replies say: updates, and the models that they began with."""
        here = self._short(flat(dict(state.params), names))
        last, bases = {}, {}
        for r in replies:
            base = f"{r.round}"
            if r.round < state.round and r.order is not None:  # late: it began with a model that is gone
                base = f"{r.round}/{r.client}"
                order = Reply(r.client, r.round, r.order.params, r.order.cover, 0.0)
                bases[base] = here + self._short(update_of(order, state, names))
            else:
                bases[base] = here
            moved = self._stored(self._short(update_of(r, state, names)))
            spoke = None if self.sketch else held(r.cover, dict(state.params), names)
            last[r.client] = {"round": r.round, "base": base, "moved": moved, "held": spoke}
        return {"last": last, "bases": bases}

    def _relations(
        self, note: Mapping[str, Any], state: State, mine: Sequence[int], here: Tensor
    ) -> Iterator[tuple[int, Tensor]]:
        """Of each known client, the value of its relation with each of ``mine``."""
        last, here = note["last"], self._short(here)
        ours = _updates([last[k] for k in mine])
        late = [j for j in sorted(last) if last[j]["round"] < state.round - 1]
        for those in (sorted(last.keys() - set(late)), late):
            for at in range(0, len(those), ROWS):
                some = those[at : at + ROWS]
                theirs = _updates([last[j] for j in some])
                if those is late:
                    begun = [note["bases"][last[j]["base"]] for j in some]
                    through = torch.stack(begun) if self.origin == "model" else torch.zeros_like(theirs.moved)
                    value = approach(ours, theirs, here - through)
                else:
                    value = cosines(ours, theirs)
                yield from zip(some, value.T, strict=True)

    def _row(self, old: Mapping[str, Tensor] | None, own: int, others: Sequence[int], new: Tensor) -> dict[str, Tensor]:
        """One client's relations with all others, the old ones smoothed in."""
        of, value = torch.tensor(others), new
        if self.smooth:
            before = dict(zip(old["of"].tolist(), old["value"].tolist(), strict=True)) if old else {}
            was = torch.tensor([before.get(j, 0.0) for j in others], dtype=torch.float64)
            value = self.smooth * was + (1 - self.smooth) * new
        return {"of": of[of != own], "value": value[of != own]}

    def _short(self, vector: Tensor) -> Tensor:
        return sketched(vector, self.sketch) if self.sketch else vector

    def _stored(self, vector: Tensor) -> Tensor:
        """The vector where it is to live: in a file of its own that ends with the tensor, if that is asked for."""
        if not self.spill or vector.untyped_storage().filename is not None:
            return vector
        with NamedTemporaryFile(dir=Path(self.spill)) as file:
            mapped = torch.from_file(file.name, shared=True, size=vector.numel(), dtype=vector.dtype)
            return mapped.copy_(vector)


def _updates(said: Sequence[Mapping[str, Any]]) -> Updates:
    return Updates.of([s["moved"] for s in said], [s["held"] for s in said])


def importances(note: Any) -> dict[int, float]:
    """The heuristic H of each client on a map; who is not there has 0."""
    return {k: float(row["value"].sum()) for k, row in note["rows"].items()} if note else {}
