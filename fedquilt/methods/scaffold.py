"""SCAFFOLD: control variates against the drift of clients."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.control import Controlled, Scaffold
from ..parts.local import Train
from ..parts.merge import Weight
from ..parts.schedule import Sync


def scaffold(
    server_lr: float = 1.0,
    weight: Weight = "uniform",
    fraction: float = 0.1,
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, arXiv:1910.06378), option II.

    .. math:: y \leftarrow y - \eta (\nabla F_i(y) - c_i + c), \qquad
        c_i \leftarrow c_i - c + \tfrac{1}{K \eta} (\theta - y_i), \qquad
        c \leftarrow c + \tfrac{1}{N} \sum_{i \in S} \Delta c_i

    K is the number of steps that were done.  Without momentum, of which the variates would know
    nothing.  N is the number of clients that may be selected.

    :sent: The whole model and the server's control variate; the change of the client's comes back too
    """
    local = Controlled(Train(SGD(lr, decay=decay), epochs, batch))
    return Method("scaffold", local=local, merge=Scaffold(server_lr, weight), schedule=Sync(fraction))
