"""FedAdam and FedYogi: an adaptive optimiser at the server."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import ServerAdam
from ..parts.schedule import Sync


def fedadam(
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedAdam (Reddi et al., ICLR 2021, arXiv:2003.00295).

    .. math:: \theta^{t+1} = \theta^t + \eta \, m_t / (\sqrt{v_t} + \tau), \qquad
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \quad v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2

    with :math:`\Delta_t` the mean change of the clients, weighted by samples (Algorithm 2 of the paper
    averages uniformly, its experiments by samples).  Without bias correction, as in the paper; v
    starts at :math:`\tau^2`.  Statistics of normalisation layers are averaged plainly.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    return Method("fedadam", local=train, merge=ServerAdam(server_lr, beta1, beta2, tau), schedule=Sync(fraction))
