"""FedDyn: a regulariser that makes local optima agree with the global one."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.control import Dynamic, Regularised
from ..parts.local import Train
from ..parts.schedule import Sync


def feddyn(
    alpha: float = 0.1,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedDyn (Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, ICLR 2021, arXiv:2111.04263).

    .. math:: \theta_i = \arg\min F_i(\theta) - \langle g_i, \theta \rangle
        + \tfrac{\alpha}{2} \lVert \theta - \theta^t \rVert^2, \qquad g_i \leftarrow g_i - \alpha (\theta_i - \theta^t)

    and the server takes the uniform mean less :math:`h / \alpha`, with h the sum of all that clients
    have moved, times :math:`-\alpha / N`.  Statistics of normalisation layers are averaged plainly.
    """
    local = Regularised(Train(SGD(lr, momentum, decay=decay), epochs, batch), alpha)
    return Method("feddyn", local=local, merge=Dynamic(alpha), schedule=Sync(fraction))
