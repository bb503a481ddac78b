"""DepthFL: sub-models by depth, whose heads teach each other."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.control import Dynamic
from ..parts.depth import Depth, Staged
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync
from ..types import Merge


def depthfl(
    alpha: float | None = 0.1,
    ramp: int = 300,
    mutual: bool = True,
    last: bool = False,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""DepthFL (Kim, Yu, Kim, Moon, ICLR 2023, openreview pf8RIZTMU58, code: Flower's baselines/depthfl).

    A device trains the first d stages of a net with a head after each; every head learns from the labels and from
    the other heads; each tensor is the plain mean over those who hold it:

    .. math:: \sum_{i \le d} \Big[ L(z_i, y) + \tfrac{\lambda_t}{d - 1} \sum_{j \ne i} KL(p_j \Vert p_i) \Big]
        - \langle g_i, \theta \rangle + \tfrac{\alpha}{2} \lVert \theta - \theta^t \rVert^2, \qquad
        \lambda_t = e^{-5 (1 - \min(t, T) / T)^2}

    with FedDyn's terms and server (``alpha``; ``none`` leaves them out) and T the round ``ramp``.  A tensor of which
    nobody speaks in a round stays.  A client uses the mean of its heads' outputs.  Without ``mutual`` heads do not
    teach; with ``last`` only the last is trained and used (InclusiveFL).

    d is the most stages whose operations, heads included, are within the device's width's share of the
    whole net's (the text leaves it open).  Heads are a mean over positions and a linear layer, where the authors
    have bottlenecks of separable convolutions and gates of attention.  The net is built with its exits; one that
    cannot have any has one depth only.

    :family: sub-models
    :kept: its sums of gradients
    """
    local = Staged(Train(SGD(lr, momentum, decay=decay), epochs, batch), alpha, ramp, mutual, last)
    merge: Merge = CoverMean("uniform") if alpha is None else Dynamic(alpha)
    return Method("depthfl", send=Depth(), local=local, merge=merge, schedule=Sync(fraction), exits=True)
