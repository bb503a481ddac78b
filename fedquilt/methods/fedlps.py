"""FedLPS: learned patterns, bandit-chosen ratios."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.learned import Learned, Pattern
from ..parts.local import Train
from ..parts.merge import Filled
from ..parts.pucbv import PUCBV, Rationed
from ..parts.ratio import Given
from ..parts.schedule import Sync


def fedlps(
    pattern: Pattern = "learned",
    ratio: Literal["pucbv", "capability", "fixed"] = "pucbv",
    share: float = 0.5,
    mu: float = 1.0,
    lam: float = 1.0,
    probe: Literal["epoch", "step"] = "epoch",
    intervals: int = 5,
    low: float = 1 / 16,
    rho: float = 0.5,
    horizon: float = 10.0,
    fall: float = 5.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""FedLPS (Xue, Sun, Liu, Wang, Liu, Wang, manuscript; code of 2024): learnable sparse customisation.

    Client k trains :math:`\max(1, \lfloor s J \rfloor)` units of every hidden group of J, those of the highest
    scores Q, which are trained with the weights and stay with the client:

    .. math::
        L = L_{task}(\theta \odot step(Q - \tau)) + \mu \lVert \theta - \theta^t \rVert^2
        + \lambda \tfrac{1}{J} \lVert Q - \sigma(\lvert\theta\rvert_J) \rVert^2, \qquad
        \theta^{t+1} = \theta^t + \sum_k n_k (\theta_k - \theta^t) \odot M_k / \sum_k n_k

    and uses the masked model of its last round.  ``ratio`` says s: by P-UCBV, as the device's capability
    (RCR in the paper), or a ``fixed`` ``share`` for all (FLST); never more than the device carries.

    The paper is silent on the derivative of the step; it is taken as that of the identity (straight-through), for
    units that are off too.  That needs the dense model's gradient, which the paper does not count and which is
    counted here.  So scores are learned once an epoch, and the epoch is trained on the small model alone;
    ``probe="step"`` is the paper to the letter and costs as much as dense training.  The regulariser's formula
    has a misprint (it pulls the weights, which have another shape, where scores are meant).  An LSTM's unit is masked
    in all its gates, an embedding by feature columns, never by words.  In the released code scores get no gradient
    and begin anew each time, one unit too few is kept, and the bandit's bonus has no influence: none of that is
    here, nor its noise on the mean.  ``mu`` and ``lam`` are 1 as in the paper; scores begin uniform between 0 and 1.

    :sent: The whole model; what comes back are the units that the client has chosen
    """
    ratios = {
        "pucbv": PUCBV(None, intervals, low, rho, horizon, fall),
        "capability": Given(),
        "fixed": Given(share),
    }
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    return Method(
        "fedlps",
        send=Rationed(ratios[ratio]),
        local=Learned(train, pattern, mu, lam, probe),
        merge=Filled(),
        schedule=Sync(fraction),
    )
