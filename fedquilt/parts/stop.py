"""When a run ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..fleet import Fleet
from ..types import Part, Reply, State


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


STOPS: Mapping[str, Callable[..., Never | Plateau]] = {"never": Never, "plateau": Plateau}
