"""FedAvg: the mean of what the clients became."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync


def fedavg(
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    weight: Literal["samples", "uniform"] = "samples",
    finetune: int = 0,
) -> Method:
    r"""FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629).

    .. math:: \theta^{t+1} = \sum_{i \in S_t} n_i \theta_i / \sum_{i \in S_t} n_i

    Weights are numbers of training samples (released code often counts batches).  With
    ``finetune`` each client uses the global model after so many epochs on its own data; what
    is sent and merged stays the same.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, finetune=finetune)
    return Method("fedavg", local=train, merge=CoverMean(weight), schedule=Sync(fraction))
