"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass

from ..fleet import Fleet
from ..key import Key
from ..types import Part, State


@dataclass(frozen=True)
class Uniform(Part):
    """``n`` clients, every one as likely as any other.

    The key depends on seed and round alone, so that all methods of a comparison meet the same cohorts.
    """

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """The chosen clients, sorted."""
        ids = sorted(fleet.devices)
        return sorted(ids[j] for j in key.permutation(len(ids))[:n].tolist())


@dataclass(frozen=True)
class Everyone(Part):
    """All clients that are free, whatever the schedule asks for."""

    def __call__(self, state: State, fleet: Fleet, n: int, key: Key) -> list[int]:
        """All of them, sorted."""
        return sorted(fleet.devices)
