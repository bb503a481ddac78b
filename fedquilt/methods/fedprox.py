"""FedProx: a pull towards what was received, and less work for slow devices."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Length, Train
from ..parts.merge import CoverMean
from ..parts.schedule import Sync
from ..parts.terms import Proximal


def fedprox(
    mu: float | None = None,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    least_epochs: int | None = None,
    seconds: float | None = None,
    batch: int = 32,
    weight: Literal["samples", "uniform"] = "samples",
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""FedProx (Li et al., MLSys 2020, arXiv:1812.06127).

    .. math:: h_i(\theta) = F_i(\theta) + \frac{\mu}{2} \lVert \theta - \theta^t \rVert^2

    Partial work: with ``least_epochs`` each client does a random number of epochs from that to
    ``epochs``; with ``seconds`` as much of ``epochs`` as its device manages in that time.
    The paper samples by data size and averages uniformly; here, as in most code, clients are
    sampled uniformly and averaged by data size (``weight``).  The norm is squared, unlike in the
    released code of FLrce and FedLPS.  ``mu`` is 0.01 if nothing is said.

    ``variant="seed"`` is FLrce's baseline of this name: 3 to 5 random epochs, and a ``mu`` of 0.05 (its value for
    CIFAR-10; it takes 0.1 for CIFAR-100 and 0.5 for EMNIST and Speech).
    """
    seed = variant == "seed"
    mu = (0.05 if seed else 0.01) if mu is None else mu
    least_epochs = min(3, epochs) if seed and least_epochs is None else least_epochs
    length = epochs if least_epochs is None and seconds is None else Length(least_epochs or 1, epochs, seconds)
    train = Train(SGD(lr, momentum, decay=decay), length, batch, terms=(Proximal(mu),))
    return Method("fedprox", local=train, merge=CoverMean(weight), schedule=Sync(fraction))
