"""Who owns the running statistics of normalisation layers: one explicit policy a run.

| policy      | travel | training moves them        | evaluation normalises with             |
| ----------- | ------ | -------------------------- | -------------------------------------- |
| `shared`    | yes    | all                        | running statistics                     |
| `personal`  | no     | all, kept by the client    | the client's running statistics        |
| `batch`     | no     | none                       | the batch at hand                      |
| `post-hoc`  | no     | none                       | statistics of the final weights, taken |
|             |        |                            | over the client's training data        |
| `per-width` | yes    | those of the width in use  | the running statistics of that width   |
| `frozen`    | yes    | those of units that move   | running statistics                     |

A training batch with one value a channel (one sample behind a dense layer) has no variance: such a
batch is normalised with the running statistics and does not move them (`models/norm.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .cover import Cover, Params
from .model import STATISTICS, Model

T = TypeVar("T")


@dataclass(frozen=True)
class Norm:
    """A row of the table above."""

    travel: bool
    update: bool
    running: bool


NORMS = {
    "shared": Norm(travel=True, update=True, running=True),
    "personal": Norm(travel=False, update=True, running=True),
    "batch": Norm(travel=False, update=False, running=False),
    "post-hoc": Norm(travel=False, update=False, running=True),
    "per-width": Norm(travel=True, update=True, running=True),
    "frozen": Norm(travel=True, update=True, running=True),
}


def norm(name: str) -> Norm:
    """The policy of this name."""
    if name not in NORMS:
        raise ValueError(f"no policy for normalisation statistics is called {name!r}; there are {', '.join(NORMS)}")
    return NORMS[name]


def is_statistic(name: str) -> bool:
    """Is a tensor of this name a running statistic, of whatever width?"""
    return name.partition("@")[0].rpartition(".")[2] in STATISTICS


def at_width(name: str, width: float) -> str:
    """What a statistic is called in the set of one width."""
    return f"{name}@{width:g}"


def held(params: Params, model: Model, policy: str, widths: Sequence[float]) -> Params:
    """The server's tensors under a policy: ``per-width`` keeps one set of statistics a width."""
    if policy != "per-width":
        return params
    own = {k: v for k, v in params.items() if k not in model.statistics}
    sets = {at_width(k, w): params[k] for k in model.statistics for w in sorted({1.0, *widths})}
    return dict(sorted((own | sets).items()))


def travelling(cover: Cover, model: Model, policy: str, widths: Sequence[float]) -> Cover:
    """The part of a sub-model's cover that is sent, by the names that the server gives them."""
    rule = norm(policy)
    if not rule.travel:
        return cover.only(lambda k: k not in model.statistics)
    if policy != "per-width":
        return cover
    spans = {k: cover[k] for k in cover if k not in model.statistics}
    sets = {at_width(k, w): cover[k] for k in cover if k in model.statistics for w in widths}
    return Cover(spans | sets)


def plain(named: Mapping[str, T], width: float) -> dict[str, T]:
    """By the net's own names: of the sets of statistics only that of ``width``, without its suffix."""
    end = at_width("", width)
    return {k.removesuffix(end): v for k, v in named.items() if "@" not in k or k.endswith(end)}


def sent(named: Mapping[str, T], cover: Cover, width: float) -> dict[str, T]:
    """By the names of a travelling cover: the statistics of the net as the set of ``width``."""
    end = at_width("", width)
    return dict(named) | {k: named[k.removesuffix(end)] for k in cover if k.endswith(end)}
