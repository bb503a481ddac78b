"""FedP3: each client answers for some layers, and sees a pruned form of the others."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean, Weight
from ..parts.partition import ForLayers, Layers, SomeLayers
from ..parts.schedule import Sync


def fedp3(
    layers: Layers = "two",
    keep: float = 0.9,
    least: float = 1.0,
    weight: Weight = "uniform",
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedP3 (Yi, Gazagnadou, Richtárik, Lyu, ICLR 2024, arXiv:2404.09816).

    A client is sent its layers and the head as they are, and of every tensor of the other layers only the ``keep``
    largest weights.  It trains all of that, and sends back its layers and the head:

    .. math:: \theta^{t+1}_l = \tfrac{1}{|\{i: l \in L_i\}|} \sum_{i: l \in L_i} \theta_{il}

    ``layers`` of a client: ``one`` hidden layer (the paper's LowerB), ``two`` or ``three`` consecutive ones (OPU2,
    OPU3), a ``random`` half in each round (OPR), or all.  A layer is a stage of the net; which ones a client
    has follows from its id, where the authors' code goes by blocks of 25 clients.  What stands outside of the stages
    is everybody's.  ``least`` below 1 is the paper's local pruning by ordered dropout: a step runs and moves the first
    units of every group alone, a share of them that is drawn anew, from ``least`` to 1.  (Its other forms drop single
    weights, which saves nothing.)
    The authors' experiments have everybody take part in every round (``fraction=1``).

    :family: sub-models
    :sent: The client's layers whole, the others pruned
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    return Method(
        "fedp3",
        send=SomeLayers(layers, keep),
        local=ForLayers(train, least),
        merge=CoverMean(weight),
        schedule=Sync(fraction),
    )
