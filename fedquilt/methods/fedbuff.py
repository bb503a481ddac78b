"""FedBuff: a buffer instead of rounds."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import Filled
from ..parts.schedule import Buffered


def fedbuff(
    busy: int = 10,
    k: int = 5,
    server_lr: float = 1.0,
    staleness: float = 0.5,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedBuff (Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, AISTATS 2022, arXiv:2106.06639).

    .. math::
        \theta^{t+1} = \theta^t + \frac{\eta_g}{K} \sum_{i=1}^{K} (1 + \tau_i)^{-a} (\theta_i - \theta^{t - \tau_i})

    ``busy`` clients always work; the server steps when ``k`` changes have come, each measured from the
    model that its client was sent.  Changes count alike, whatever the number of samples, as in the
    paper; its secure aggregation is not part of this.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    return Method("fedbuff", local=train, merge=Filled("uniform", server_lr, staleness), schedule=Buffered(busy, k))
