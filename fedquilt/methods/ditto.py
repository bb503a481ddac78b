"""Ditto: a global model for all, and a personal one pulled towards it."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.personal import Twice
from ..parts.schedule import Sync


def ditto(
    lam: float = 1.0,
    own_epochs: int | None = None,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""Ditto (Li, Hu, Beirami, Smith, ICML 2021, arXiv:2012.04221).

    .. math:: \theta^{t+1} = \text{FedAvg}, \qquad
        v_i \leftarrow v_i - \eta \left( \nabla F_i(v_i) + \lambda (v_i - \theta^t) \right)

    The pull is to the model that was received, and its norm is squared (in released code of FedLPS it
    is not).  Both models are trained for ``epochs``, the personal one for ``own_epochs`` if that is
    said; the global trajectory is FedAvg's, bit for bit.  The authors choose ``lam`` from 0.1, 1 and 2.
    """
    optim = SGD(lr, momentum, decay=decay)
    local = Twice(Train(optim, epochs, batch), Train(optim, epochs if own_epochs is None else own_epochs, batch), lam)
    return Method("ditto", local=local, schedule=Sync(fraction))
