"""How many clients work at once, and when the server stops waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..types import Part


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is a number above 0, not {value}")


@dataclass(frozen=True)
class Sync(Part):
    """A cohort starts together and the round ends with its last.

    A cohort is ``clients``, or else ``fraction`` of all.  With ``over`` above 1 that many times
    more are asked, and the slowest of them are not waited for.  ``quorum`` is the share of the
    cohort whose replies a round needs: with fewer the model stays as it is.
    """

    fraction: float = 0.1
    clients: int | None = None
    over: float = 1.0
    quorum_share: float = 0.0

    keeps_late = False

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction is a share of the clients, above 0 and at most 1, not {self.fraction}")
        if not 0 <= self.quorum_share <= 1:
            raise ValueError(f"quorum_share is a share of the cohort, from 0 to 1, not {self.quorum_share}")
        if self.clients is not None:
            _positive("clients", self.clients)
        _positive("over", self.over)

    def _cohort(self, fleet: int) -> int:
        return min(fleet, self.clients or max(1, math.floor(self.fraction * fleet + 1e-9)))

    def want(self, fleet: int, inflight: int) -> int:
        """How many to start now, of a fleet of so many."""
        return 0 if inflight else min(fleet, math.ceil(self.over * self._cohort(fleet) - 1e-9))

    def until(self, start: float) -> float:
        """Wait as long as it takes."""
        return math.inf

    def after(self, until: float, arrived: int) -> float:
        """When the time is over it is over."""
        return until

    def enough(self, arrived: int, inflight: int, lost: int = 0) -> bool:
        """All that are waited for are there, in place of those ``lost`` as many others."""
        return inflight == 0 or arrived >= math.floor((arrived + inflight + lost) / self.over + 1e-9)

    def quorum(self, asked: int) -> int:
        """How many replies make a round of so many orders."""
        return max(1, math.ceil(self.quorum_share * asked / self.over - 1e-9))


@dataclass(frozen=True)
class Deadline(Sync):
    """A cohort as in :class:`Sync`, but after ``seconds`` the round ends with those that are there."""

    seconds: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("seconds", self.seconds)

    def until(self, start: float) -> float:
        """The end of the round."""
        return start + self.seconds


@dataclass(frozen=True)
class Carried(Sync):
    """REFL's: a cohort as in :class:`Sync`, but what comes after the round's end counts in a later one.

    Those who are still out count towards the next cohort, which is half as large as usual at least.
    """

    over: float = 1.3

    keeps_late = True

    def want(self, fleet: int, inflight: int) -> int:
        """How many to start now, beside those that are still out."""
        cohort = self._cohort(fleet)
        usual = math.ceil(self.over * cohort - 1e-9)
        return min(fleet, max(math.ceil(cohort / 2), usual - inflight))


@dataclass(frozen=True)
class Buffered(Part):
    """FedBuff (arXiv:2106.06639): ``busy`` clients always work, the server steps at every ``k``-th reply.

    With k = 1 this is FedAsync's schedule.  A reply may be some rounds old: staleness is the
    state's round less the reply's.
    """

    busy: int = 10
    k: int = 1

    keeps_late = True

    def __post_init__(self) -> None:
        _positive("busy", self.busy)
        _positive("k", self.k)
        if self.k > self.busy:
            raise ValueError(f"a step needs k = {self.k} replies, but only busy = {self.busy} clients work at once")

    def want(self, fleet: int, inflight: int) -> int:
        """Fill up."""
        return max(0, min(self.busy, fleet) - inflight)

    def until(self, start: float) -> float:
        """Wait as long as it takes."""
        return math.inf

    def after(self, until: float, arrived: int) -> float:
        """There is no time that could be over."""
        return until

    def enough(self, arrived: int, inflight: int, lost: int = 0) -> bool:
        """The buffer is full (or nobody is left to fill it)."""
        return arrived >= self.k or inflight == 0

    def quorum(self, asked: int) -> int:
        """One reply is enough."""
        return 1


@dataclass(frozen=True)
class Windows(Sync):
    """Mishra and Gupta's aperiodic update: the server steps after each ``share`` of the ``seconds`` that a round takes.

    A cohort as in :class:`Sync` works; who has answered in a window starts again with the next, so the fast train
    several times while the slow train once.  A window ends early when nobody is out any more, and lasts on while
    nobody has answered.  Each window is a round of the run.  Where ``seconds`` is 0, the slowest device says it.
    """

    share: float = 0.5
    seconds: float = 0.0

    keeps_late = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("share", self.share)
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"seconds is a time, or 0 for that of the slowest device, not {self.seconds}")

    def want(self, fleet: int, inflight: int) -> int:
        """Fill up the cohort."""
        return max(0, self._cohort(fleet) - inflight)

    def until(self, start: float) -> float:
        """The end of the window; without ``seconds`` that of the last who is out."""
        return start + self.share * self.seconds if self.seconds else math.inf

    def after(self, until: float, arrived: int) -> float:
        """Another window, if nobody has answered."""
        return until if arrived else until + self.share * self.seconds

    def enough(self, arrived: int, inflight: int, lost: int = 0) -> bool:
        """Nobody is out."""
        return inflight == 0

    def quorum(self, asked: int) -> int:
        """One reply is enough."""
        return 1


SCHEDULES: Mapping[str, Callable[..., Sync | Deadline | Buffered]] = {
    "sync": Sync,
    "deadline": Deadline,
    "carried": Carried,
    "buffered": Buffered,
    "windows": Windows,
}
