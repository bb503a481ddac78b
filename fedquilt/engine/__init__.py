"""Engines run local work: who answers the requests, and how.  The same numbers from each.

An engine knows no method.  It is given jobs (a local, an order, a client) and gives back what came
of each, in the order given, with the counts of what was executed.  A job that fails is that
client's failure, not the run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from ..meter import Usage
from ..model import Model
from ..models import MODELS
from ..types import Client, Handle, Local, Order


@dataclass(frozen=True, eq=False)
class Job:
    """Train as the order says; or, where ``score`` names splits, score the model that the client would use."""

    local: Local
    order: Order
    client: Client
    score: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Done:
    """What came of a job: (reply, memory), or a :class:`fedquilt.fit.Scored` for each split."""

    value: object
    usage: Usage


@dataclass(frozen=True, eq=False)
class Failed:
    """Why a job came to nothing."""

    reason: str
    error: Exception


class Data(Protocol):
    """Where data live: handles to tensors."""

    def __getitem__(self, handle: Handle) -> tuple[Tensor, Tensor]: ...


class Engine(Protocol):
    """Runs jobs."""

    def run(self, jobs: Sequence[Job]) -> list[Done | Failed]: ...


@dataclass(frozen=True)
class Setup:
    """Engine, memory layout and threads: resolved once a run, recorded in it, never probed again."""

    engine: str
    layout: str
    threads: int

    @staticmethod
    def resolve(model: Model, engine: str = "serial") -> Setup:
        """By a fixed rule: the zoo's convolutions of 8 channels or more run channels-last; one thread a client.

        A net of one's own may take views that only the contiguous layout has.
        """
        wide = model.name in MODELS and any(
            isinstance(m, nn.Conv2d) and m.out_channels >= 8 for m in model.net.modules()
        )
        return Setup(engine, "channels_last" if wide else "contiguous", 1)

    def record(self) -> Mapping[str, object]:
        """As it stands in run.json."""
        return {"engine": self.engine, "layout": self.layout, "threads": self.threads}
