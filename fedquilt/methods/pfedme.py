"""pFedMe: personal models by Moreau envelopes."""

from __future__ import annotations

from ..method import Method
from ..parts.merge import Filled
from ..parts.meta import Moreau
from ..parts.schedule import Sync


def pfedme(
    lam: float = 15.0,
    eta: float = 0.005,
    lr: float = 0.05,
    steps: int = 20,
    inner: int = 5,
    beta: float = 1.0,
    fraction: float = 0.1,
    batch: int = 32,
) -> Method:
    r"""pFedMe (Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848).

    .. math:: \theta_i \approx \arg\min_\theta F_i(\theta) + \tfrac{\lambda}{2} \lVert \theta - w_i \rVert^2, \quad
        w_i \leftarrow w_i - \eta \lambda (w_i - \theta_i), \quad
        w^{t+1} = (1 - \beta) w^t + \tfrac{\beta}{|S|} \sum_i w_i

    The minimum is sought by ``inner`` steps on one batch, from the personal model of the step before
    (from w at first).  A client uses its personal model of its last participation.
    """
    local = Moreau(lam, eta, lr, steps, inner, batch)
    return Method("pfedme", local=local, merge=Filled("uniform", beta), schedule=Sync(fraction))
