"""FedRolex: a window of units that rolls on from round to round."""

from __future__ import annotations

from ..fit import SGD, TaskLoss
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync
from ..parts.send import Rolling
from ..parts.terms import SeenClasses


def fedrolex(
    step: int = 1,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    masked: bool = True,
    scaler: bool = True,
    posthoc: bool = True,
) -> Method:
    r"""FedRolex (Alam, Liu, Yan, Zhang, NeurIPS 2022, arXiv:2212.01548).

    .. math:: I_l = \{(j + i) \bmod K_l : 0 \le i < \lfloor \beta K_l \rfloor\} \text{ in round } j

    The same offset for every client of a round; each coordinate is the plain mean over those who held
    it.  The switches are HeteroFL's, as in the authors' code.  A window of m of K units has been
    everywhere after K - m + 1 rounds.  Unit counts are rounded down, as everywhere.
    """
    loss = SeenClasses() if masked else TaskLoss()
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, loss, own_rows=masked, scaler=scaler)
    return Method(
        "fedrolex",
        send=Rolling(step),
        local=train,
        merge=CoverMean("uniform"),
        schedule=Sync(fraction),
        norm="post-hoc" if posthoc else "shared",
    )
