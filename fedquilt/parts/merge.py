"""How replies become the next global model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..cover import Params, mean
from ..types import Part, Reply, State


@dataclass(frozen=True)
class CoverMean(Part):
    """Each coordinate averaged over the clients that spoke of it; where nobody did it stays.

    ``weight``: by ``samples`` (the client's weight, its number of training samples) or ``uniform``.
    """

    weight: Literal["samples", "uniform"] = "samples"

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        uniform = self.weight == "uniform"
        return mean(dict(state.params), [(r.params, r.cover, 1.0 if uniform else r.weight) for r in replies])
