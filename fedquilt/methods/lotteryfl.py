"""LotteryFL: each client finds the small net in the large one that wins on its data."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync
from ..parts.sparse import Remembered, Ticket


def lotteryfl(
    accuracy: float = 0.2,
    prune: float = 0.1,
    target: float = 0.5,
    rewind: bool = True,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""LotteryFL (Li, Sun, Wang, Duan, Li, Chen, Li, SEC 2021, arXiv:2008.03371).

    .. math:: \text{accuracy} > a \wedge r_i > r^*: \quad m_i \leftarrow m_i \text{ less the smallest share } p, \quad
        \theta_i \leftarrow m_i \odot \theta^0; \qquad
        \theta^{t+1}_j = \text{mean of those who hold } j

    A client whose received model is good on its own data loses a share ``prune`` of the weights that are left in each
    tensor, until ``target`` of all remain, and starts again from the initial values (with ``rewind=False``, and in
    FedLPS's code, it goes on).  Weights outside of the mask are and stay zero, also under momentum (the authors' code
    freezes whatever passes through zero); biases and norm layers are never pruned.  The mean is uniform.  Departure:
    whether a model is good is measured on validation data (in the authors' code on the test data).  The server sends
    a client the weights of its last mask, so the mask is stored there.  Computing is charged dense (``ideal`` counts
    zeros as free).

    :family: personal sub-models
    :sent: The weights of the client's own mask, and all that is never pruned
    """
    local = Ticket(Train(SGD(lr, momentum, decay=decay), epochs, batch), accuracy, prune, target, rewind)
    return Method("lotteryfl", send=Remembered(), local=local, merge=CoverMean("uniform"), schedule=Sync(fraction))
