"""Federated dropout: random sub-models of one size."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.send import Random


def feddrop(
    ratio: float = 0.75,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""Federated Dropout (Caldas, Konečný, McMahan, Talwalkar 2018, arXiv:1812.07210).

    .. math:: |I_l| = \max(1, \lfloor r K_l \rfloor) \text{ units of each layer, drawn afresh for each client and round}

    A client trains the small net of these units, with no rescaling; each coordinate is the mean over
    those who held it, weighted by samples (the paper leaves the normalisation open).  What is learnt, and
    what a client uses, is the whole model.  Every client has the same ``ratio``, 0.75 being the paper's safe
    choice and FLrce's setting (``variant="seed"`` is thus the same).  The paper's compression of the downlink
    is not part of this.  Released code of FLrce trains the whole net with zeros and averages wrongly; its
    single-digit accuracies follow.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    return Method("feddrop", send=Random(ratio), local=train, schedule=Sync(fraction))
