"""FedSpa: personal masks of one density, which wander."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import Filled
from ..parts.schedule import Sync
from ..parts.sparse import OwnMask, Regrow


def fedspa(
    density: float = 0.5,
    rate: float = 0.5,
    horizon: int = 100,
    grow: Literal["gradient", "random", "nothing"] = "gradient",
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedSpa (Huang, Liu, Shen, He, Lin, Tao 2022, arXiv:2201.11380).

    .. math:: \theta^{t+1} = \theta^t - \tfrac{1}{|S|} \sum_i m_i \odot (\theta^t - \theta_i), \qquad
        m_i: \text{ drop the smallest, grow by } |\nabla F_i|, \quad
        a_t = \tfrac{a_0}{2} (1 + \cos \tfrac{\pi t}{T})

    Every client has a mask of its own, of the same ``density``, shared out among the tensors by Erdos-Renyi-Kernel;
    at first it is random.  After training the share a_t of each tensor goes and as much comes, where the gradient
    of one batch is largest (``random``; with ``nothing`` it is the paper's RSM).  ``horizon`` is the paper's T.
    What has grown starts at zero for the client and at the global value in its next round, as the server sends it.
    Each client's next mask goes up with its reply, a bit a weight.  Biases and norm layers are dense.  (FedLPS's code
    starts dense, gates growth by accuracy, and ignores its setting for ERK.)  Computing is charged dense.

    :family: personal sub-models
    :sent: The weights of the client's own mask; its next mask comes back too
    """
    local = Regrow(Train(SGD(lr, momentum, decay=decay), epochs, batch), rate, horizon, grow)
    return Method("fedspa", send=OwnMask(density), local=local, merge=Filled("uniform"), schedule=Sync(fraction))
