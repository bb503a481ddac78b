"""APFL: a learnt mixture of a shared and a private model."""

from __future__ import annotations

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.merge import CoverMean
from ..parts.personal import Mixture
from ..parts.schedule import Sync


def apfl(
    alpha: float = 0.5,
    adaptive: bool = True,
    fraction: float = 0.1,
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
) -> Method:
    r"""APFL (Deng, Kamani, Mahdavi 2020, arXiv:2003.13461).

    .. math:: \theta \leftarrow \theta - \eta \nabla F_i(\theta), \quad
        v \leftarrow v - \eta \nabla_v F_i(\alpha v + (1 - \alpha) \theta), \quad
        \alpha \leftarrow \alpha - \eta \langle \nabla F_i(\bar v), v - \theta \rangle

    on the same batches.  The mixing weight moves at every step with the same learning rate and is
    brought back into [0, 1] when the work is done (the paper moves it once a round; with
    ``adaptive=False`` it stays at ``alpha``).  Statistics of normalisation layers are those of the
    shared model's passes.  The mean is uniform, as in the paper.
    """
    mixture = Mixture(Train(SGD(lr, decay=decay), epochs, batch), alpha, adaptive)
    return Method("apfl", local=mixture, merge=CoverMean("uniform"), schedule=Sync(fraction))
