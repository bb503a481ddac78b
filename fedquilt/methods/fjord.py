"""FjORD: ordered dropout, a width drawn in every local step."""

from __future__ import annotations

from typing import Literal

from ..fit import SGD
from ..method import Method
from ..parts.local import Train
from ..parts.nested import FIFTHS, Nested, Tier
from ..parts.schedule import Sync
from ..parts.send import Ordered
from ..parts.static import Static


def fjord(
    widths: tuple[float, ...] = FIFTHS,
    distil: float | None = 1.0,
    fraction: float = 0.1,
    lr: float = 0.05,
    momentum: float = 0.0,
    decay: float = 1.0,
    epochs: int = 5,
    batch: int = 32,
    variant: Literal["paper", "seed"] = "paper",
) -> Method:
    r"""FjORD (Horváth, Laskaridis, Almeida, Leontiadis, Venieris, Lane, NeurIPS 2021, arXiv:2102.13451).

    A device of capacity :math:`p_i` is sent the first units of each group; each of its local steps draws a
    width :math:`p \le p_i` from ``widths`` and runs and moves the first :math:`p` of the units alone:

    .. math:: (1 - \alpha) L(f_p, y) + \alpha \, KL(f_{p_i} \Vert f_p) + L(f_{p_i}, y), \qquad
        \theta^{t+1}_j = \sum_{i: p_i \ge p(j)} n_i \theta_{ij} / \sum_{i: p_i \ge p(j)} n_i

    with :math:`p(j)` the least width that has the coordinate j: capacity decides who is averaged, not what was
    drawn.  ``distil`` is alpha; with ``none`` there is no teacher and only the first loss.  Each width has its
    own statistics of normalisation layers, those of p averaged over the clients that may draw it.  A client uses
    its widest.  Unit counts are rounded down, as everywhere (the authors round up); neither momentum nor
    decay moves what was not drawn (in Flower's port they do).

    ``variant="seed"`` is the baseline of this name in FedSPU and FedLPS: the fixed prefix of the device's width, no
    draw, no teacher; a client uses the sub-model that it trained last.

    :family: sub-models
    :kept: nothing
    """
    train = Train(SGD(lr, momentum, decay=decay), epochs, batch)
    if variant == "seed":
        return Method("fjord", send=Ordered(), local=Static(train), schedule=Sync(fraction))
    local = Nested(train, tuple(widths), distil)
    return Method("fjord", send=Tier(tuple(widths)), local=local, schedule=Sync(fraction), norm="per-width")
