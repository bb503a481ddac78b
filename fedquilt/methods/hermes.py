"""Hermes: personal structured sub-models, averaged where they overlap."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.gated import Gated, InCommon, OverlapMean
from ..parts.local import Train
from ..parts.schedule import Sync
from ..parts.static import Chosen, Static


def hermes(
    lam: float = 1e-3,
    threshold: float = 0.5,
    target: float = 0.5,
    step: float = 0.1,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""Hermes (Li, Sun, Li, Pu, Li, Chen, MobiCom 2021, doi:10.1145/3447993.3483278).

    .. math:: F_i(\theta) + \lambda \sum_g \lVert \theta_g \rVert_2, \qquad
        \theta_j \leftarrow \sum_{i \in S} n_i \theta_{ij} / \sum_{i \in S} n_i
        \text{ where } j \in \textstyle\bigcap_{i \in S} M_i, \text{ else each client keeps its own}

    g are filters and channels, rows and columns.  Where a client's accuracy on its validation data is above
    ``threshold`` and more than ``target`` of its parameters remain, it drops a ``step`` of its remaining
    units, those of least l2 norm.  It sends its sub-model and which units it has; it receives what the clients of
    the last round have in common, as far as it has it too.

    The constants are those of FedLPS's scripts.  FedLPS's code adds a lasso without gradient and averages
    changes over all clients; neither is done here.  ``variant="seed"`` is FedSPU's baseline of this name: each client
    fixes its units once, by the l2 norm after one step on the received model, as many as its device carries;
    each coordinate is averaged over those who hold it.

    :family: personal sub-models
    :sent: The units that the clients of the last round have in common; those that the client has come back
    :kept: its own sub-model
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    if variant == "seed":
        return Method("hermes", send=Chosen(), local=Static(train, "l2"), schedule=Sync(fraction))
    local = Gated(train, lam, threshold, target, step)
    return Method("hermes", send=InCommon(), local=local, merge=OverlapMean(), schedule=Sync(fraction))
