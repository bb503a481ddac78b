"""FLrce: relationships choose the clients, conflict ends the run."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.relation import Related
from ..parts.schedule import Sync
from ..parts.stop import Conflict


def flrce(
    fraction: float = 0.1,
    explore: float = 0.98,
    warmup: int = 0,
    psi: float | None = None,
    record_only: bool = False,
    origin: Literal["model", "zero"] = "model",
    smooth: float = 0.0,
    touching: bool = False,
    statistics: bool = False,
    sketch: int = 0,
    spill: str = "",
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FLrce (Niu, Dong, Qin, Gu, IEEE Transactions on Mobile Computing, 2024).

    The server keeps each client's last update and a map of how they relate:

    .. math::
        \Omega_{kj} = \cos(u_k, u_j) \text{ if } t_j \ge t - 1, \text{ else }
        \max\{1 - d_j(w^t + u_k) / d_j(w^t), -1\}, \qquad H_k = \sum_{j \ne k} \Omega_{kj}

    With probability :math:`0.98^{t-1}` any P clients take part, else those with the largest H.  The run
    ends when, in a round of the latter kind, a client is in conflict (negative cosine) with ``psi`` or
    more of the others on average; the default is P/2, as the paper advises.

    The paper leaves the origin of the lines open.  Here they run through the model on which the update
    was made, as its figure 8 shows (``origin="zero"`` is the formula taken literally, a distance to a line
    through the origin).  An update is what training moved: running statistics, which the released
    code includes and which there make up nearly all of an update's length, are left out
    (``statistics``).  That code also smooths the map (``smooth=0.1``), counts a cosine of 0 as a conflict
    (``touching``), explores for 20 rounds first on one data set (``warmup``), and never stops
    (``record_only``).  Where clients hold parts of the model (the paper's future work) two updates are
    compared over the coordinates that both held.
    """
    return Method(
        "flrce",
        select=Related(explore, warmup, origin, smooth, statistics, sketch, spill),
        local=Train(SGD(lr, momentum, decay=decay), epochs, batch),
        stop=Conflict(psi, explore, warmup, touching, record_only, statistics),
        schedule=Sync(fraction),
    )
