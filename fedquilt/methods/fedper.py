"""FedPer: a shared base, a personal head."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.send import Except


def fedper(
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    head: tuple[str, ...] = (),
) -> Method:
    r"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary 2019, arXiv:1912.00818).

    .. math:: (\phi_i, h_i) \leftarrow \text{SGD on } F_i(\phi^t, h_i), \qquad
        \phi^{t+1} = \sum_i n_i \phi_i / \sum_i n_i

    Base and head are trained together; only the base travels, and a client uses the newest base with
    its own head.  ``head`` names the personal tensors by patterns (``stage4.*``); without it, they are
    the net's head.  Statistics of normalisation layers belong to the base and travel with it.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, keep="rest")
    return Method("fedper", send=Except(head), local=train, schedule=Sync(fraction))
