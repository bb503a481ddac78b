"""Per-FedAvg: an initial model from which one step on own data goes far."""

from __future__ import annotations

from typing import Literal

from ..method import Method
from ..parts.merge import CoverMean
from ..parts.meta import Meta
from ..parts.schedule import Sync


def perfedavg(
    alpha: float = 0.01,
    lr: float = 0.05,
    steps: int = 10,
    hessian: Literal["none", "free", "exact"] = "none",
    delta: float = 1e-3,
    serving: int = 1,
    fraction: float = 0.1,
    batch: int = 32,
) -> Method:
    r"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv:2002.07948).

    .. math:: \min_\theta \sum_i F_i(\theta - \alpha \nabla F_i(\theta))

    by ``steps`` local meta steps of size ``lr`` (the paper's beta): of the first order (FO, the
    default), Hessian-free (HF, ``hessian="free"``), or with the exact Hessian-vector product.  Each
    gradient has a batch of its own.  A client uses the model after ``serving`` steps of size alpha on
    its own data.  The mean is uniform.  (Released code of FedLPS computes the inner step and does not
    use it.)
    """
    meta = Meta(alpha, lr, steps, batch, hessian, delta, serving)
    return Method("perfedavg", local=meta, merge=CoverMean("uniform"), schedule=Sync(fraction))
