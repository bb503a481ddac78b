"""FedAsync: no rounds at all."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import Mixed
from ..parts.schedule import Buffered
from ..parts.terms import Proximal


def fedasync(
    busy: int = 10,
    alpha: float = 0.6,
    staleness: float = 0.5,
    mu: float = 0.005,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedAsync (Xie, Koyejo, Gupta 2019, arXiv:1903.03934), with the polynomial weight of staleness.

    .. math:: \theta^{t+1} = (1 - \alpha_t) \theta^t + \alpha_t \theta_i, \qquad \alpha_t = \alpha (1 + \tau)^{-a}

    Clients minimise :math:`F_i(\theta) + \frac{\mu}{2} \lVert \theta - \theta^{t - \tau} \rVert^2`; each reply
    is a step of the server.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, terms=(Proximal(mu),) if mu else ())
    return Method("fedasync", local=train, merge=Mixed(alpha, staleness), schedule=Buffered(busy, 1))
