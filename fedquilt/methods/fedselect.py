"""FedSelect: weights that move much become the client's own."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.partition import Alternating
from ..parts.schedule import Sync
from ..parts.sparse import Remembered


def fedselect(
    rate: float = 0.25,
    limit: float | None = None,
    every: int | None = None,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""FedSelect (Tamirisa, Xie, Bao, Zhou, Arel, Shamsian, CVPR 2024, arXiv:2404.02478).

    Every weight is shared or a client's own, at first all are shared.  An epoch is a pass over the data that moves the
    own weights and one that moves the shared ones, both on the whole net.  In every ``every``-th of a client's
    rounds, of each tensor's shared weights the share ``rate`` that moved most becomes its own:

    .. math:: \theta^{t+1}_j = \tfrac{1}{|S_j|} \sum_{i \in S_j} \theta_{ij}, \quad S_j = \{i: v_{ij} = 0\}, \qquad
        v_i \leftarrow v_i \cup \mathrm{top}_\rho |\theta_i - \theta_i^{old}|

    until a share ``limit`` of the tensor is (0.8, as in the authors' code).  As long as a client has no weights of its
    own, it trains plainly.  What has just become its own is not sent.  Tensors of one axis (biases, normalisation)
    are always shared; the authors let the weights of normalisation layers be own ones too.  No sub-model is
    cut out: a client trains the whole net twice over.

    ``variant="seed"``: FedSPU's setting, from 0.25 to 0.5 of the weights, growing in every round.

    :family: personal models
    :sent: The weights that the client shares
    :kept: its whole model, which weights are its own, and what they were
    """
    seed = variant == "seed"
    most = limit if limit is not None else 0.5 if seed else 0.8
    local = Alternating(
        Train(SGD(lr, momentum, decay=decay), epochs, batch),
        rate,
        most,
        every if every is not None else 1 if seed else 3,
    )
    return Method("fedselect", send=Remembered(), local=local, merge=CoverMean("uniform"), schedule=Sync(fraction))
