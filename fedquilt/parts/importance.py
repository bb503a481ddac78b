"""How much the units of a net matter, and which of them to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..cover import Cover, Params, Place, count_units
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..types import Part, Reply, State
from .ratio import Given

Score = Literal["l1", "l2"]


def rows_of(model: Model) -> dict[str, list[Place]]:
    """For each group the places at which its units are made: rows of weights (columns, where it has no rows)."""
    weights = [p for p in model.places if p.name in model.trainable and len(model.shapes[p.name]) > 1]
    out: dict[str, list[Place]] = {}
    for g in model.groups:
        mine = [p for p in weights if p.axis.group == g]
        out[g] = [p for p in mine if p.dim == 0] or mine
    return out


def by_unit(t: Tensor, place: Place) -> Tensor:
    """The entries of each unit at a place, one row a unit."""
    a = place.axis
    own = t.narrow(place.dim, place.start, place.length).movedim(place.dim, 0)
    return own.reshape(a.repeat, place.units, a.block, -1).movedim(1, 0).flatten(1)


def unit_scores(model: Model, params: Params, how: Score = "l1") -> dict[str, Tensor]:
    """Of each unit the l1 or l2 norm of its incoming weights (a filter's kernels), over all tensors of its group."""
    out = {}
    for g, places in rows_of(model).items():
        rows = torch.cat([by_unit(params[p.name].double(), p) for p in places], 1)
        out[g] = rows.abs().sum(1) if how == "l1" else torch.linalg.vector_norm(rows, dim=1)
    return out


def best(model: Model, scores: dict[str, Tensor], ratio: float) -> Cover:
    """The ``max(1, floor(ratio n))`` units of greatest score in each group, of equal ones the first."""

    def kept(score: Tensor) -> Tensor:
        return score.sort(descending=True, stable=True).indices[: count_units(ratio, len(score))].sort().values

    return model.cover({g: kept(s) for g, s in scores.items()})


# ---- which units, as extras of a reply
def granted(model: Model) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The extras in which a client may say which units of each group it has."""
    return {f"units/{g}": (torch.bool, (n,)) for g, n in model.groups.items()}


def told(model: Model, units: Mapping[str, Tensor]) -> Params:
    """These units, as such extras."""
    return {f"units/{g}": torch.zeros(n).bool().index_fill(0, units[g], True) for g, n in model.groups.items()}


def heard(reply: Reply) -> dict[str, Tensor]:
    """The units that a reply says (none, if it says nothing of them)."""
    return {k[6:]: v.nonzero().flatten() for k, v in reply.extra.items() if k.startswith("units/")}


@dataclass(frozen=True)
class Important(Part):
    """The units of greatest weights in the global model; of each group the share that the ratio part says."""

    ratio: Given = Given()
    score: Score = "l1"

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The sub-model of these units."""
        share = self.ratio(state.notes.get("send"), client, device, key)
        return best(model, unit_scores(model, dict(state.params), self.score), share)

    def used(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover | None:
        """The whole model, where it is not the device that bounds what it trains."""
        return None if self.ratio.by_device else model.whole

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """What the ratio part learns."""
        return self.ratio.learn(note, state, replies, fleet)
