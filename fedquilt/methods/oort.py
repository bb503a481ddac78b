"""Oort: clients that have been worth most for the time that they take, and some that are new."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.utility import Utility


def oort(
    explore: float = 0.9,
    least: float = 0.2,
    alpha: float = 2.0,
    deadline: float = 0.3,
    window: int = 20,
    most: int = 0,
    over: float = 1.3,
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0,
    decay: float = 1.0, epochs: int = 5, batch: int = 32,
) -> Method:  # fmt: skip
    r"""Oort (Lai, Zhu, Madhyastha, Chowdhury, OSDI 2021, arXiv:2010.06081).

    .. math:: S_i = \Big( \hat U_i + \sqrt{0.1 \ln R / R_i} \Big) (T / t_i)^{\alpha \, [t_i > T]}, \qquad
        U_i = n_i \sqrt{\tfrac{1}{n_i} \textstyle\sum_x \ell(x)^2}

    Losses are those of single samples while they are trained on (released code squares the means of batches).
    ``over`` times the cohort is asked, and the slowest are not waited for; what they spent is counted.  As in
    released code, U is brought to [0, 1] before the bonus is added, and T is a quantile of known times
    (``deadline``) that the pacer raises, so it needs no unit.  The admission cut is the paper's 95 % (released: 5 %).
    Departures: nobody rests after many rounds unless ``most`` says so (after ten in the paper, which with few
    clients leaves nobody), and the merge is the mean rather than YoGi's, which any method may take.
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    select = Utility(explore, least=least, alpha=alpha, deadline=deadline, window=window, most=most)
    return Method("oort", select, local=train, schedule=Sync(fraction, over=over))
