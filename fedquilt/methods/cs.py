"""CS: a sparse model goes down, and its complement comes up."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.sparse import Complementary, Nonzero, Sparsified


def cs(
    sparsity: float = 0.5,
    server_lr: float = 1.5,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""Complement Sparsification (Jiang, Borcea, AAAI 2023, arXiv:2303.06237).

    .. math:: \theta_{dense} = \theta^t + \eta \sum_i n_i (1 - M) \odot \theta_i / \sum_i n_i, \qquad
        \theta^{t+1} = \text{the largest } 1 - \sigma \text{ of each tensor of } \theta_{dense}

    The first round is dense.  Then the server sends the weights that are left (mask M), clients train all weights from
    there, and send only those that were pruned, and all biases and norm layers.  So the weights of M, which clients
    do train, are not changed by them.  The model in use is the sparse one.  ``variant="seed"`` is FedLPS's baseline:
    half of the weights, and the plain mean (a server step of 1); its code sends the larger half of the change
    instead of the complement, which is not repeated here.  Departure: SGD, where the authors use Adam.

    :family: one global model
    :sent: The weights that are left, and all that is never pruned; what comes back are the others
    """
    train, plain = Train(SGD(lr, momentum, decay=decay), epochs, batch), variant == "seed"
    merge = Sparsified(0.5 if plain else sparsity, 1.0 if plain else server_lr)
    return Method("cs", send=Nonzero(), local=Complementary(train), merge=merge, schedule=Sync(fraction))
