"""FedYogi: FedAdam with a second moment that grows more slowly."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import ServerAdam
from ..parts.schedule import Sync


def fedyogi(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0,
    decay: float = 1.0, epochs: int = 5, batch: int = 32,
) -> Method:  # fmt: skip
    r"""FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295).

    .. math:: v_t = v_{t-1} - (1 - \beta_2) \Delta_t^2 \, \mathrm{sign}(v_{t-1} - \Delta_t^2)

    and everything else as in FedAdam.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    merge = ServerAdam(server_lr, beta1, beta2, tau, yogi=True)
    return Method("fedyogi", local=train, merge=merge, schedule=Sync(fraction))
