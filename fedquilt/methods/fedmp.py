"""FedMP: pruned sub-models whose sizes a bandit chooses."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.importance import Important
from ..parts.local import Train
from ..parts.merge import Filled
from ..parts.ratio import EUCB
from ..parts.schedule import Sync
from ..parts.static import Chosen, Static


def fedmp(
    share: float | None = None,
    discount: float = 0.9,
    narrow: float = 0.05,
    most: float = 1.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""FedMP (Jiang, Xu, Xu, Wang, Qiao, Zhao, ICDE 2022, doi:10.1109/ICDE53745.2022.00211).

    In each round the server drops, for each client, a share :math:`\alpha_i` of the units of every group of the
    global model: those whose incoming weights have the least l1 norm.  The client trains the sub-model; the server
    puts what was pruned (the residual) back beside it and averages whole models, and a whole one is what clients use:

    .. math:: \theta^{t+1} = \tfrac{1}{|S|} \sum_{i \in S} [M_i \theta_i + (1 - M_i) \theta^t]

    A bandit (E-UCB) chooses :math:`\alpha_i`, so that clients end a round at the same time and the loss falls; see
    :class:`fedquilt.parts.ratio.EUCB`.  ``share`` keeps a fixed share instead.  No code of the authors is
    known, and the text does not give the bandit's constants: ``discount``, ``narrow`` (the least width of an
    interval that is split) and ``most`` (that may be dropped) are assumed.  Times are taken relative to the
    cohort's mean, so that reward and bonus have one scale; the first round has no earlier loss and pays nothing.

    ``variant="seed"`` is FedSPU's baseline of this name: each client fixes its units once, by the l1 norm
    after one step on the received model, as many as its device carries; each coordinate is averaged over those who
    hold it.  FedSPU's code scores a net drawn afresh and, later, lets full clients overwrite partial ones.

    :family: sub-models
    :sent: The units of greatest l1 norm, as many as a bandit says
    :kept: nothing
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    if variant == "seed":
        return Method("fedmp", send=Chosen(), local=Static(train, "l1"), schedule=Sync(fraction))
    send = Important(EUCB(share, discount, narrow, most))
    return Method("fedmp", send=send, local=train, merge=Filled("uniform"), schedule=Sync(fraction))
