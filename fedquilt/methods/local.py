"""No federation: what each client reaches alone."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.send import Nothing


def local(
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0, decay: float = 1.0, epochs: int = 5, batch: int = 32
) -> Method:
    r"""Local training: every client for itself, the reference that a federation has to beat.

    .. math:: \theta_i \leftarrow \theta_i - \eta \nabla F_i(\theta_i)

    The same cohorts train for the same time as under any other method (so that budgets compare),
    each its own model from the common initial one; nothing is sent either way.  The baseline
    of PFLlib (Zhang et al., JMLR 2025, arXiv:2312.04992) and of every personalisation paper.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, keep="whole")
    return Method("local", send=Nothing(), local=train, schedule=Sync(fraction))
