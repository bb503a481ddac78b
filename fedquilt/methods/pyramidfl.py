"""PyramidFL: Oort's selection, and for those selected, how much to send and how long to train."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import Filled
from ..parts.portion import Portion
from ..parts.schedule import Sync
from ..parts.utility import Pyramid


def pyramidfl(
    low: float = 0.1,
    high: float = 0.6,
    beta: float = 1.0,
    longest: float = 10.0,
    explore: float = 0.9,
    over: float = 1.3,
    fraction: float = 0.1, lr: float = 0.05, momentum: float = 0.0,
    decay: float = 1.0, epochs: int = 5, batch: int = 32,
) -> Method:  # fmt: skip
    r"""PyramidFL (Li, Zeng, Zhang, Cao, MobiCom 2022, doi:10.1145/3495243.3517017).

    .. math:: \rho_i = low + r_i (high - low) / K, \qquad
        T = \max_i t^{cmp}_i + (1 - \rho_i) t^{com}_i, \qquad
        \tau_i / \tau = 1 + \min\big(10, \lfloor \beta (T - t_i) / (t^{cmp}_i / E) \rfloor / E \big)

    r ranks the selected by :math:`n_i \sqrt{\text{mean} \Delta_i^2}` of their last update; each tensor of an upload
    stays behind with probability :math:`\rho_i`, and a change that did not come counts as none (``Filled``), as in
    the authors' code.  Selection is Oort's with the authors' settings.  T is over those who are waited for, and times
    are those of the base work and the whole model, as there.  Departure: the server takes an update's
    size from what arrived of it, so nobody has to be believed.  ``beta`` is not given: 1 fills the whole wait.
    (FLrce describes the method as fewer epochs; its authors only add some.)

    :sent: The whole model; some tensors of what would come back stay behind
    """
    select = Pyramid(
        explore, 0.95, cut=0.7, clip=0.98, low=low, high=high, beta=beta, longest=longest, epochs=epochs, over=over
    )
    local = Portion(Train(SGD(lr, momentum, decay=decay), epochs, batch))
    return Method("pyramidfl", select, local=local, merge=Filled(), schedule=Sync(fraction, over=over))
