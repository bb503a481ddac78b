"""FedSPU: stochastic parameter update."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.send import Random


def fedspu(
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0, decay: float = 1.0, epochs: int = 5, batch: int = 32
) -> Method:
    r"""FedSPU (Niu, Dong, Qin, AAAI 2025, arXiv:2403.11464).

    In each round a client of width p is sent ``max(1, floor(p n))`` random units of every hidden
    group, sews them into its own whole model, trains with everything else frozen, and returns them:

    .. math::
        \hat\theta_i = \theta_i \text{ with } \theta^t \text{ at } A_i, \qquad
        \theta^{t+1}_j = \sum_{i: j \in A_i} n_i \theta_{ij} / \sum_{i: j \in A_i} n_i

    and where nobody held j, it stays.  The model that a client uses is its own.

    Departures from the released code, each a fault of it: active units are averaged over all who
    held them (there full clients overwrite partial ones or the reverse, by order of arrival), every
    entry of a bias is its own (there all get the first), flattened columns follow their channel,
    weights are samples rather than batches, and a client that has not yet trained uses the initial
    model with what it would now be sent sewn in, not an alias of the global one.  The update is
    masked, not only the gradient, so momentum and decay do not move what is frozen.  Statistics of
    frozen units are frozen too (``norm="shared"`` lets them drift as the released code does).
    Output units are never cut.
    Early stopping is a part for any method: ``stop="plateau"``.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch, keep="whole", freeze=True)
    return Method("fedspu", send=Random(), local=train, schedule=Sync(fraction), norm="frozen")
