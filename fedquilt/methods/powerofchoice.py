"""Power-of-choice: clients whose loss is large take part more often."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync
from ..parts.utility import PowerOfChoice


def powerofchoice(
    candidates: float = 2.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""Power-of-Choice (Cho, Wang, Joshi 2020, arXiv:2010.01243), the variant rpow-d.

    .. math:: A \sim n_i / \textstyle\sum n \text{ without replacement}, \; |A| = d, \qquad
        S = \text{the } m \text{ of } A \text{ with the largest } \hat F_i

    d is ``candidates`` times m.  Of the paper's three variants this is the one without a message of its own:
    :math:`\hat F_i` is the mean loss of the client's last training, infinite before it has had one.  (pow-d asks
    all of A for the loss of the newest model first, in another exchange; here a round is one exchange.)  The mean
    is uniform, as in the paper, since clients with more data are drawn more often.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    merge = CoverMean("uniform")
    return Method("powerofchoice", PowerOfChoice(candidates), local=train, merge=merge, schedule=Sync(fraction))
