"""Extended federated dropout: as much of the net as the device carries, at random."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.send import Random


def efd(
    target: float = 1.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""eFD, the baseline that FjORD defines (Horváth et al., NeurIPS 2021, arXiv:2102.13451, section 5.1).

    .. math:: |I_l| = \max(1, \lfloor \min(p_c, p^*) K_l \rfloor) \text{ of the first } \lfloor p^* K_l \rfloor
        \text{ units}

    The model that is learnt is the net of width ``target``; a device of less capacity trains a random
    part of it, drawn afresh in each round.  The paper runs it once for each target, judges the net of that width and
    picks the best afterwards.  Here devices that carry the target use it whole; one that does not uses the random
    part that it would be sent, since it carries no more.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    return Method("efd", send=Random(target=target), local=train, schedule=Sync(fraction))
