"""Take a patch, put it back, average many."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .axes import Params
from .cover import Cover


def take(p: Params, c: Cover) -> Params:
    """The piece of ``p`` that ``c`` speaks about, at its own compact shapes."""
    return {k: s.take(p[k]) for k, s in c.spans.items()}


def put(p: Params, c: Cover, piece: Params) -> Params:
    """``p`` with ``piece`` sewn back in; tensors that ``c`` does not name are shared, not copied."""
    if lost := c.spans.keys() - p.keys():
        raise ValueError(f"the cover speaks of {', '.join(sorted(lost)[:3])}, which there is nothing to sew into")
    return {k: c[k].put(v, piece[k]) if k in c else v for k, v in p.items()}


def mean(base: Params, parts: Iterable[tuple[Params, Cover, float]]) -> Params:
    r"""Each coordinate averaged over those who spoke of it; where nobody did, ``base``.

    .. math:: p_j + \frac{\sum_{i: j \in C_i} n_i (x_{ij} - p_j)}{\sum_{i: j \in C_i} n_i}

    summed in float64 in the order given.  Differences, not values, are summed: so a coordinate
    that everybody returns as it was sent does not move by one bit.  Who weighs nothing says nothing.
    Integers are rounded, halves to the even one.
    """
    num: Params = {}
    den: Params = {}
    for piece, cover, n in parts:
        if not (math.isfinite(n) and n >= 0):
            raise ValueError(f"a weight is a finite number, at least 0, not {n}")
        if n == 0:
            continue
        for k, s in cover.spans.items():
            if k not in num:
                num[k] = torch.zeros(base[k].shape, dtype=torch.float64)
                den[k] = torch.zeros(base[k].shape, dtype=torch.float64)
            num[k][s.index] += n * _difference(s.fitting(piece[k]), s.take(base[k]))
            den[k][s.index] += n
    return {k: _moved(v, num[k], den[k]) if k in num else v for k, v in base.items()}


def _difference(x: Tensor, p: Tensor) -> Tensor:
    if p.is_floating_point():
        return x.to(torch.float64) - p.to(torch.float64)
    return (x.to(torch.int64) - p.to(torch.int64)).to(torch.float64)


def _moved(p: Tensor, num: Tensor, den: Tensor) -> Tensor:
    step = num / torch.where(den > 0, den, 1.0)
    if p.is_floating_point():
        return torch.where(step == 0, p, (p.to(torch.float64) + step).to(p.dtype))
    down = step.floor()
    low, rest = p.to(torch.int64) + down.to(torch.int64), step - down
    up = (rest > 0.5) | ((rest == 0.5) & (low % 2 == 1))  # of the value, not of the step: p has no say
    return (low + up).to(p.dtype)
