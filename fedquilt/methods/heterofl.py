"""HeteroFL: nested sub-models by width."""

from __future__ import annotations

from ..fit import SGD, TaskLoss
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync
from ..parts.send import Ordered
from ..parts.terms import SeenClasses


def heterofl(
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    masked: bool = True,
    scaler: bool = True,
    posthoc: bool = True,
) -> Method:
    r"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021, arXiv:2010.01264).

    A device of width r trains the first ``max(1, floor(r n))`` units of every group; each
    coordinate is the plain mean over those who held it:

    .. math:: \theta^{t+1}_j = \frac{1}{|\{i: j \in C_i\}|} \sum_{i: j \in C_i} \theta_{ij}

    Three switches, all part of the method: ``masked`` (the outputs of classes that a client does
    not hold count as zero in its loss, and it does not speak for their rows), ``scaler`` (hidden
    layers are divided by r while training), ``posthoc`` (no running statistics in training; those
    that a client evaluates with are taken over its own data at the end).  Here unit counts are rounded down, as
    everywhere (the authors round up), and local test accuracy does not mask the absent classes.
    """
    loss = SeenClasses() if masked else TaskLoss()
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, loss, own_rows=masked, scaler=scaler)
    return Method(
        "heterofl",
        send=Ordered(),
        local=train,
        merge=CoverMean("uniform"),
        schedule=Sync(fraction),
        norm="post-hoc" if posthoc else "shared",
    )
