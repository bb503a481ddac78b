"""The coordinates of one tensor, in one canonical form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Span:
    """The coordinates of one tensor: all of it, a block (one index vector an axis) or a mask.

    Built only by :func:`block` and :func:`masked`, which make the form canonical: two spans are
    the same set of coordinates exactly if they have the same form and the same content.
    """

    shape: tuple[int, ...]
    axes: tuple[Tensor | None, ...] | None = None
    mask: Tensor | None = None

    @property
    def kind(self) -> str:
        """``whole``, ``block`` or ``mask``."""
        return "mask" if self.mask is not None else "block" if self.axes is not None else "whole"

    @cached_property
    def piece(self) -> tuple[int, ...]:
        """The shape of what :func:`take` gives."""
        if self.mask is not None:
            return (int(self.mask.sum()),)
        if self.axes is None:
            return self.shape
        return tuple(n if a is None else len(a) for a, n in zip(self.axes, self.shape, strict=True))

    @property
    def numel(self) -> int:
        """How many coordinates."""
        return math.prod(self.piece)

    def dense(self) -> Tensor:
        """The same set as a boolean tensor of the full shape."""
        if self.mask is not None:
            return self.mask
        out = torch.full(self.shape, self.axes is None)
        if self.axes is not None:
            out[self.index] = True
        return out

    @cached_property
    def index(self) -> tuple[slice | Tensor, ...] | Tensor:
        """What addresses these coordinates inside a tensor of the full shape."""
        if self.mask is not None:
            return self.mask
        if self.axes is None:
            return (slice(None),) * len(self.shape)
        runs = [_run(a, n) for a, n in zip(self.axes, self.shape, strict=True)]
        if all(r is not None for r in runs):
            return tuple(r for r in runs if r is not None)
        full = [torch.arange(n) if a is None else a for a, n in zip(self.axes, self.shape, strict=True)]
        return tuple(a.view([-1 if k == j else 1 for j in range(len(full))]) for k, a in enumerate(full))

    def take(self, t: Tensor) -> Tensor:
        """The piece of ``t``; ``t`` itself when the span is whole."""
        _fits("a tensor", t, self.shape)
        if self.mask is not None:
            return t[self.mask]
        if self.axes is None:
            return t
        for d, (a, n) in enumerate(zip(self.axes, self.shape, strict=True)):
            if a is not None:
                run = _run(a, n)
                t = t.index_select(d, a) if run is None else t.narrow(d, run.start, run.stop - run.start)
        return t.contiguous()

    def put(self, t: Tensor, piece: Tensor) -> Tensor:
        """A copy of ``t`` with ``piece`` sewn in."""
        _fits("a tensor", t, self.shape)
        piece = self.fitting(piece).to(t.dtype)
        if self.kind == "whole":
            return piece
        out = t.clone()
        out[self.index] = piece
        return out

    def fitting(self, piece: Tensor) -> Tensor:
        """The piece, if it has the shape of one: torch would repeat a smaller one."""
        _fits("a piece", piece, self.piece)
        return piece

    def same(self, other: Span) -> bool:
        """Equality of sets (and of the full shape)."""
        if self.shape != other.shape or self.kind != other.kind:
            return False
        if self.mask is not None and other.mask is not None:
            return torch.equal(self.mask, other.mask)
        if self.axes is None or other.axes is None:
            return True
        return all(
            (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b))
            for a, b in zip(self.axes, other.axes, strict=True)
        )

    def __and__(self, other: Span) -> Span | None:
        if self.mask is not None or other.mask is not None:
            return masked(self.dense() & other.dense())
        if self.axes is None or other.axes is None:
            return self if other.axes is None else other

        def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
            return b if a is None else a if b is None else a[torch.isin(a, b, assume_unique=True)]

        return block(self.shape, tuple(both(a, b) for a, b in zip(self.axes, other.axes, strict=True)))


def _fits(what: str, t: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(t.shape) != shape:
        raise ValueError(f"{what} of shape {tuple(t.shape)} meets a cover that speaks of shape {shape}")


def _run(a: Tensor | None, n: int) -> slice | None:
    """The slice that a sorted index vector is, or None if it has gaps."""
    if a is None:
        return slice(0, n)
    first, last = int(a[0]), int(a[-1])
    return slice(first, last + 1) if last - first + 1 == len(a) else None


def block(shape: tuple[int, ...], axes: tuple[Tensor | None, ...]) -> Span | None:
    """The span of a block: one vector of positions (any order) an axis, or None for the whole axis."""
    if len(axes) != len(shape):
        raise ValueError(f"{len(axes)} index vectors for a tensor of {len(shape)} axes")
    out: list[Tensor | None] = []
    for a, n in zip(axes, shape, strict=True):
        if a is None:
            out.append(None)
            continue
        a = a.to(torch.int64).unique()
        if len(a) == 0:
            return None
        if int(a[0]) < 0 or int(a[-1]) >= n:
            raise ValueError(f"positions {int(a[0])}..{int(a[-1])} do not fit an axis of {n}")
        out.append(None if len(a) == n else a)
    if math.prod(shape) == 0:
        return None
    return Span(shape, None if all(a is None for a in out) else tuple(out))


def masked(mask: Tensor) -> Span | None:
    """The span of a boolean mask, as whole or block where it is one."""
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask is boolean, not {mask.dtype}")
    count = int(mask.sum())
    if count == 0:
        return None
    shape = tuple(mask.shape)
    if count == mask.numel():
        return Span(shape)
    rays = [mask.flatten() if mask.dim() == 1 else mask.movedim(d, 0).flatten(1).any(1) for d in range(mask.dim())]
    if math.prod(int(r.sum()) for r in rays) == count:
        return block(shape, tuple(r.nonzero().flatten() for r in rays))
    return Span(shape, mask=mask.clone())
