"""FedCOMGATE: compressed changes, and clients that correct their drift."""

from __future__ import annotations

from ..codec import codec_of
from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.tracking import Tracked, Tracking


def fedcomgate(
    codec: str = "uniform:8",
    server_lr: float = 1.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedCOMGATE (Haddadpour, Kamani, Mokhtari, Mahdavi, AISTATS 2021, arXiv:2007.01154).

    .. math:: \theta \leftarrow \theta - \eta (\nabla F_i(\theta) - \delta_i), \qquad
        q_i = Q((\theta^t - \theta_i) / \eta), \qquad \delta_i \leftarrow \delta_i + \tfrac{1}{\tau} (q_i - \bar q),
        \qquad \theta^{t+1} = \theta^t - \eta \gamma \bar q

    with tau the number of steps that were done.  The paper lets everybody take part and broadcasts the mean
    of the codes after each round; here a client is told the mean of its last round with its next order, so
    whoever does not take part keeps its correction.  That is a second download of the model's size, as it
    is in the paper.  Without momentum, of which the correction would know nothing.

    :family: one global model
    :sent: The whole model, and the mean change of the client's last round; what comes back is encoded
    :kept: its correction, and what it last sent
    """
    local = Tracked(Train(SGD(lr, decay=decay), epochs, batch), codec_of(codec))
    return Method("fedcomgate", local=local, merge=Tracking(server_lr), schedule=Sync(fraction))
