"""How alike what two clients learnt is: updates as vectors, and their relations over what both clients held.

A client that held a part of the model has learnt nothing about the rest.  So two updates are
compared at the coordinates that both were sent; elsewhere neither says anything about the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..cover import Cover, Params
from ..key import Key
from ..norm import is_statistic
from ..types import Reply, State
from .merge import base_of

ROWS = 32  # how many stored vectors are at work at once: a few times this many are in memory beside those stored
STRAIGHT = 1e-3  # a distance below this share of the vector's length is rounding: the point lies on the line


def speaks(params: Params, statistics: bool = False) -> tuple[str, ...]:
    """The tensors that are compared: what gradients move, and running statistics too where that is asked for."""
    return tuple(k for k in sorted(params) if params[k].is_floating_point() and (statistics or not is_statistic(k)))


def flat(params: Params, names: Sequence[str]) -> Tensor:
    """These tensors as one vector of float32."""
    return torch.cat([params[k].flatten().float() for k in names]) if names else torch.zeros(0)


def update_of(reply: Reply, state: State, names: Sequence[str]) -> Tensor:
    """What a client changed, as one vector; nothing where it did not speak."""
    base = base_of(reply, state)
    out = {k: torch.zeros(state.params[k].shape) for k in names}
    for k, s in reply.cover.spans.items():
        if k in out:
            out[k][s.index] = reply.params[k].float() - base[k].float()
    return flat(out, names)


def held(cover: Cover, params: Params, names: Sequence[str]) -> Tensor | None:
    """Which coordinates of the vector a cover speaks of; None if it speaks of all."""
    if all(k in cover and cover[k].kind == "whole" for k in names):
        return None
    shapes = {k: params[k].shape for k in names}
    return torch.cat([(cover[k].dense() if k in cover else torch.zeros(s).bool()).flatten() for k, s in shapes.items()])


@dataclass(frozen=True, eq=False)
class Updates:
    """Some clients' updates, a row each, and what each held (None: all of them held everything)."""

    moved: Tensor
    held: Tensor | None = None

    @staticmethod
    def of(moved: Sequence[Tensor], held: Sequence[Tensor | None]) -> Updates:
        """Rows put together."""
        rows = torch.stack(list(moved))
        if all(h is None for h in held):
            return Updates(rows)
        return Updates(rows, torch.stack([torch.ones(rows.shape[1]) if h is None else h.float() for h in held]))

    def over(self, vectors: Tensor) -> Tensor:
        """Of each update and each of these vectors: the vector's sum over what the update's client held."""
        return vectors.sum(1).expand(len(self.moved), -1) if self.held is None else self.held @ vectors.T


def cosines(a: Updates, b: Updates) -> Tensor:
    r"""The cosine of each update of ``a`` with each of ``b`` over the coordinates that both held.

    .. math:: \cos(u, v) = \frac{u \cdot v}{\lVert u_{M \cap N} \rVert \, \lVert v_{M \cap N} \rVert}

    Nothing is like an update that is nothing: 0.
    """
    lengths = b.over(a.moved.square()).T * a.over(b.moved.square())
    return torch.where(lengths > 0, (a.moved @ b.moved.T) / lengths.sqrt().clamp_min(1e-30), 0.0)


def approach(a: Updates, b: Updates, ahead: Tensor) -> Tensor:
    r"""How much nearer each update of ``a`` brings the global model to the line of each of ``b``.

    ``ahead`` is, a row for each of ``b``, the global model less a point on that line; the line runs
    along the update.  With d the distance from the line (over the coordinates that both held):

    .. math:: \max\{1 - d(w + u) / d(w), -1\}

    A global model that lies on the line can only leave it: -1 if the update does, else 0.
    """
    x = ahead if b.held is None else ahead * b.held
    along, square = a.over(x * b.moved), a.over(b.moved.square()).clamp_min(1e-30)
    before = a.over(x.square())
    after = (before + 2 * a.moved @ x.T + b.over(a.moved.square()).T).clamp_min(0)
    along_after = along + a.moved @ b.moved.T
    near, far = (before - along**2 / square).clamp_min(0), (after - along_after**2 / square).clamp_min(0)
    off = far.sqrt() > STRAIGHT * after.sqrt()
    gain = 1 - torch.where(off, far.sqrt(), 0.0) / near.sqrt().clamp_min(1e-30)
    return torch.where(near.sqrt() > STRAIGHT * before.sqrt(), gain.clamp_min(-1), -off.float())


# ---- shorter vectors
@lru_cache(maxsize=2)
def _places(length: int, short: int) -> tuple[Tensor, Tensor]:
    """Where each coordinate goes in a sketch, and with which sign: the same in every run."""
    g = Key(0).at("sketch", length, short).torch()
    return torch.randint(short, (length,), generator=g), torch.randint(2, (length,), generator=g).float() * 2 - 1


def sketched(vector: Tensor, short: int) -> Tensor:
    r"""A random projection to ``short`` numbers: a count sketch (Charikar, Chen, Farach-Colton, ICALP 2002).

    It is linear, takes one pass, and inner products of sketches are those of the vectors with a
    standard deviation of at most :math:`\sqrt{2 / short}` of the product of their lengths.
    """
    place, sign = _places(len(vector), short)
    return torch.zeros(short).index_add_(0, place, vector * sign)
