"""REFL: those first who will be away soon, and late replies are not thrown away."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.presence import LeastAvailable, StaleMean
from ..parts.schedule import Carried


def refl(
    beta: float = 0.35,
    cooldown: int = 5,
    accuracy: float = 0.9,
    over: float = 1.3,
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0,
    decay: float = 1.0, epochs: int = 5, batch: int = 32,
) -> Method:  # fmt: skip
    r"""REFL (Abdelmoniem, Sahu, Canini, Fahmy, EuroSys 2023, arXiv:2111.01108).

    .. math:: \theta^{t+1} = \theta^t + \sum_i \hat w_i u_i, \qquad
        w_s = \frac{1 - \beta}{\tau_s + 1} + \beta \left( 1 - e^{-\Lambda_s / \Lambda_{max}} \right), \; w_{fresh} = 1

    Selection asks the clients' availability in the slot after this one and takes the least likely first;
    predictions come from the fleet's own trace, right with probability ``accuracy``, as the authors simulate them.
    With ``--availability always`` all are equal and it is a random choice with a cooldown.  Late updates are merged
    in the round in which they come, each once (the stored code computes their weights and leaves them out).
    Departure: a new cohort is smaller by all who are still out, not by those expected within the round.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    select = LeastAvailable(cooldown=cooldown, accuracy=accuracy)
    return Method("refl", select, local=train, merge=StaleMean(beta), schedule=Carried(fraction, over=over))
