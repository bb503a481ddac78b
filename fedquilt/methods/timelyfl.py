"""TimelyFL: as much of the work as each device manages in the time of the others."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.portion import Portion, Timely
from ..parts.schedule import Sync


def timelyfl(
    kth: float = 0.5,
    most: int = 10,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 1,
    batch: int = 32,
) -> Method:
    r"""TimelyFL (Zhang, Gao, Lee, Zhang, Avestimehr, CVPR Workshops 2023, arXiv:2304.06947).

    .. math:: T = \text{k-th smallest } t^{cmp}_i + t^{com}_i, \quad
        E_i = \max(\lfloor (T - t^{com}_i) / t^{cmp}_i \rfloor, 1), \quad
        \alpha_i = \min(T / (t^{cmp}_i + t^{com}_i), 1)

    A client trains :math:`E_i` units of ``epochs`` each, or only the share :math:`\alpha_i` of its layers that is next
    to the output: the others are frozen (their statistics too) and are not sent.  Times are those that the server has
    seen: everybody's first work is whole, and is the paper's probe.  Time is not in proportion to layers, since the way
    forward is always whole; so a round may last longer than T, and here all are waited for.  ``most`` bounds E.

    :sent: The whole model; what comes back are the layers that were trained
    """
    local = Portion(Train(SGD(lr, momentum, decay=decay), epochs, batch))
    return Method("timelyfl", Timely(kth, most), local=local, schedule=Sync(fraction), norm="frozen")
