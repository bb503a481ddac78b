"""PruneFL: one sparse model for all, pruned at one client first and reconfigured by squared gradients."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.reconfigure import AtOne, CommonMask, Pruned, Reconfigure
from ..parts.schedule import Sync
from ..parts.static import Chosen, Static


def prunefl(
    initial: int = 10,
    every: int = 50,
    density: float | None = None,
    rate: float = 0.3,
    constant: float = 0.5,
    sums: bool = False,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed", "fedlps"] = "paper",
) -> Method:
    r"""PruneFL (Jiang, Wang, Valls, Ko, Lee, Leung, Tassiulas, IEEE TNNLS 2022, arXiv:1909.12326).

    .. math:: \theta^{t+1} = M \odot \textstyle\sum_i n_i \theta_i / \sum_i n_i, \qquad
        M = \arg\max_M \frac{\sum_{j \in M} G_j}{c + \sum_{j \in M} t_j}, \quad G_j = \sum_i n_i \sum_{steps} g_{ij}^2

    First ``initial`` rounds at the strongest client alone, the mask chosen anew after each; then all
    clients, and a new mask every ``every`` rounds.  All but the smallest ``rate`` (halved every 10000 rounds) of
    a layer's weights in use stay; the others and the pruned ones compete by their squared gradients over their times.
    ``density`` is the most that may remain in use.  Heads, biases and normalisation layers are never pruned.

    The authors measure the time that a weight of each layer takes on their devices; here it is that of its operations
    and its bytes on the fleet's devices (see :func:`fedquilt.parts.reconfigure.times_of`), so that the same run gives
    the same mask anywhere, and c is ``constant`` times that of all weights.  They run the first stage until the size
    of the model settles, which takes more rounds than most runs have.  The square of the summed gradient, as their code
    has it, is ``sums``.  Variants: ``seed``, FedSPU's (each client fixes its units once, by how far they moved in one
    step, as many as its device carries); ``fedlps``, FedLPS's (half of the weights, chosen in the first stage alone,
    times that are all the same, plain mean).

    :family: one global model
    :sent: The weights that are not pruned; where the mask is chosen anew, squared gradients of all come back too
    :kept: its squared gradients, until they are asked for
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    if variant == "seed":
        return Method("prunefl", send=Chosen(), local=Static(train, "change"), schedule=Sync(fraction))
    seed = variant == "fedlps"
    share = density if density is not None else 0.5 if seed else 1.0
    weight: Literal["samples", "uniform"] = "uniform" if seed else "samples"
    merge = Reconfigure(every, initial, 1, rate, 10000.0, share, constant, seed, weight, timed=not seed)
    return Method(
        "prunefl",
        select=AtOne(initial),
        send=CommonMask(),
        local=Pruned(train, sums),
        merge=merge,
        schedule=Sync(fraction),
    )
