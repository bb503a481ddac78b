"""FedRep: a shared representation, and heads trained on it as it stands."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean, Weight
from ..parts.personal import Phases
from ..parts.schedule import Sync
from ..parts.send import Except


def fedrep(
    head_epochs: int = 5,
    body_epochs: int = 1,
    head: tuple[str, ...] = (),
    weight: Weight = "uniform",
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    batch: int = 32,
) -> Method:
    r"""FedRep (Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, arXiv:2102.07078).

    .. math:: h_i \leftarrow \text{SGD}_{\tau_h} F_i(\phi^t, \cdot), \quad
        \phi_i \leftarrow \text{SGD}_{\tau_\phi} F_i(\cdot, h_i), \quad \phi^{t+1} = \tfrac{1}{|S|} \sum_i \phi_i

    While one part is trained the other is frozen to the bit, its statistics included, and momentum
    does not pass from one phase to the next.  The paper trains the head for 10 epochs and the body
    for 1 or 5, with momentum 0.5.
    """
    optim = SGD(lr, momentum, decay=decay)
    phases = Phases(Train(optim, head_epochs, batch), Train(optim, body_epochs, batch, keep="rest"))
    return Method(
        "fedrep", send=Except(head), local=phases, merge=CoverMean(weight), schedule=Sync(fraction), norm="frozen"
    )
