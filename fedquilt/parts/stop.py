"""When a run ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..fleet import Fleet
from ..types import Json, Part, Reply, State
from .likeness import Updates, cosines, held, speaks, update_of
from .relation import exploits


@dataclass(frozen=True)
class Never(Part):
    """After the last round, not before."""

    def __call__(self, state: State, fleet: Fleet, replies: Sequence[Reply]) -> str | None:
        """No reason."""
        return None

    def retired(self, note: Any) -> frozenset[int]:
        """Nobody."""
        return frozenset()

    def reached(self, note: Any) -> int | None:
        """Never."""
        return None


@dataclass(frozen=True)
class Plateau(Part):
    r"""FedSPU's early stopping (arXiv:2403.11464): a client whose loss rose retires; the run ends with the last one.

    .. math:: L_t = \lambda L_{train} + (1 - \lambda) L_{val}, \qquad \text{retire when } L_t > L_{t'}

    with t' the client's previous participation.  While fewer clients remain than a round needs,
    all of them are selected.  With ``record_only`` the round in which the run would have ended is
    noted (``reached``) and the run goes on, with everybody again: one run gives both columns, and
    the first is exactly that of the run that stops.
    """

    asks: ClassVar[tuple[str, ...]] = ("val_loss",)

    lam: float = 0.7
    record_only: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1:
            raise ValueError(f"lam is a share between 0 and 1, not {self.lam}")

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Mapping[str, Any]:
        """Each client's last loss, who has retired, and after how many rounds none remained."""
        note = note or {"loss": {}, "retired": [], "reached": None}
        if note["reached"] is not None:
            return dict(note)
        loss, retired = dict(note["loss"]), set(note["retired"])
        for r in replies:
            now = self.lam * r.metrics["loss"] + (1 - self.lam) * r.metrics["val_loss"]
            if r.client in loss and now > loss[r.client]:
                retired.add(r.client)
            loss[r.client] = now
        over = len(retired) >= len(fleet)
        return {"loss": loss, "retired": sorted(retired), "reached": state.round + 1 if over else None}

    def __call__(self, state: State, fleet: Fleet, replies: Sequence[Reply]) -> str | None:
        """A reason once nobody remains."""
        if self.reached(state.notes["stop"]) is not None and not self.record_only:
            return f"the loss of every one of the {len(fleet)} clients has risen"
        return None

    def retired(self, note: Any) -> frozenset[int]:
        """Who is not to be selected any more."""
        return frozenset() if not note or note["reached"] is not None else frozenset(note["retired"])

    def reached(self, note: Any) -> int | None:
        """After how many rounds nobody remained, or None."""
        return None if not note else note["reached"]


@dataclass(frozen=True)
class Conflict(Part):
    r"""FLrce's early stopping (Niu, Dong, Qin, Gu, 2024): when those who were chosen pull against each other.

    .. math:: \tfrac{1}{P} \, \#\{(k, j): k \ne j, \cos(u_k, u_j) < 0\} \ge \psi

    The degree counts in exploit rounds (those of a :class:`~fedquilt.parts.relation.Related` of the same
    ``explore`` and ``warmup``), or, with ``explore`` 0, in every round but the first.  ``psi`` is half
    of the cohort unless it is given.  ``touching``: a cosine of 0 is a conflict too.  With ``record_only``
    the round in which the run would have ended is noted and the run goes on; the record of a round then tells the same
    of every other threshold (:func:`thresholds`).
    """

    psi: float | None = None
    explore: float = 0.0
    warmup: int = 0
    touching: bool = False
    record_only: bool = False
    statistics: bool = False

    def __post_init__(self) -> None:
        if self.psi is not None and not self.psi > 0:
            raise ValueError(f"psi is a number of clients above 0, not {self.psi}")
        if not 0 <= self.explore <= 1:
            raise ValueError(f"explore is a share, from 0 to 1, not {self.explore}")

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The degree of conflict of each exploit round, and the first round in which it was too high."""
        note = note or {"degrees": [], "reached": None}
        seeds = [r.order.seed for r in replies if r.order is not None]
        if len(replies) < 2 or not seeds or not exploits(seeds[0], state.round, self.explore, self.warmup):
            return note
        now = [state.round + 1, self.degree(state, replies), len(replies)]
        reached = note["reached"] or stopped_at([now], self.psi)
        return {"degrees": [*note["degrees"], now], "reached": reached}

    def degree(self, state: State, replies: Sequence[Reply]) -> float:
        """With how many of the others a client is in conflict, on average."""
        params = dict(state.params)
        names = speaks(params, self.statistics)
        ours = Updates.of(
            [update_of(r, state, names) for r in replies], [held(r.cover, params, names) for r in replies]
        )
        like = cosines(ours, ours).fill_diagonal_(1.0)
        return float(torch.count_nonzero(like <= 0 if self.touching else like < 0)) / len(replies)

    def __call__(self, state: State, fleet: Fleet, replies: Sequence[Reply]) -> str | None:
        """A reason once the degree was too high."""
        if self.reached(state.notes["stop"]) is None or self.record_only:
            return None
        _, degree, clients = state.notes["stop"]["degrees"][-1]
        return f"each of the {clients} chosen clients was in conflict with {degree:g} of the others on average"

    def tell(self, note: Any) -> Mapping[str, Json]:
        """The last degree of conflict, and of which round it is; where each threshold would have ended the run."""
        if not note["degrees"]:
            return {}
        round, degree, _ = note["degrees"][-1]
        ends: dict[str, Json] = {"ends": [*thresholds(note["degrees"])]} if self.record_only else {}
        return {"conflict": degree, "of round": round, **ends}

    def retired(self, note: Any) -> frozenset[int]:
        """Nobody."""
        return frozenset()

    def reached(self, note: Any) -> int | None:
        """After how many rounds the degree was too high, or None."""
        return None if not note else note["reached"]


def stopped_at(degrees: Sequence[Sequence[float]], psi: float | None) -> int | None:
    """After which round a threshold (None: half of the cohort) would have ended a run of these degrees."""
    over = (int(round) for round, degree, clients in degrees if degree >= (clients / 2 if psi is None else psi))
    return next(over, None)


def thresholds(degrees: Sequence[Sequence[float]]) -> list[Json]:
    """Of all thresholds: ``[psi, round]`` is the round that ends it for one up to psi, above the psi before."""
    out: list[Json] = []
    most = 0.0
    for round, degree, _ in degrees:
        if degree > most:
            most = degree
            out.append([degree, int(round)])
    return out


STOPS: Mapping[str, Callable[..., Never | Plateau | Conflict]] = {
    "never": Never,
    "plateau": Plateau,
    "conflict": Conflict,
}
