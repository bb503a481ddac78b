"""FedBN: normalisation layers stay at home."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.send import ExceptNorms


def fedbn(
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0, decay: float = 1.0, epochs: int = 5, batch: int = 32
) -> Method:
    r"""FedBN (Li, Jiang, Zhang, Kamp, Dou, ICLR 2021, arXiv:2102.07623).

    .. math:: \theta^{t+1}_l = \sum_i n_i \theta_{i,l} / \sum_i n_i \text{ for layers } l \text{ that do not
        normalise; } \gamma_i, \beta_i, \mu_i, \sigma_i \text{ stay with client } i

    Weights, biases and statistics of normalisation layers (group and layer norm too) are each
    client's own.  Departure: weights are numbers of samples; the paper's mean over all clients, who all take part, is
    uniform, and all of its clients have as many samples.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, keep="rest")
    return Method("fedbn", send=ExceptNorms(), local=train, schedule=Sync(fraction), norm="personal")
