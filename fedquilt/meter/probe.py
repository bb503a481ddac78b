"""What a step of one executed form costs, for any batch: counted on two small batches, once.

All that is counted grows with the batch along a line: so much a step (a term that looks at the
parameters, a view of them) and so much a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cover import Params
from ..fit import Fit
from ..step import Held, part
from .counter import count
from .memory import Saved, once
from .usage import Usage

SMALL = (2, 3)  # rows of the two batches: one alone would be normalised otherwise
Work = Callable[[Tensor, Tensor], object]


class Line(NamedTuple):
    """So much a step, and so much a sample of it."""

    step: float
    sample: float

    def at(self, n: int) -> float:
        """For a batch of ``n``."""
        return self.step + self.sample * n

    @staticmethod
    def through(low: float, high: float) -> Line:
        """From what the two small batches gave."""
        a, b = SMALL
        sample = (high - low) / (b - a)
        return Line(low - sample * a, sample)


@dataclass(frozen=True)
class Cost:
    """Operations on the way to the loss and on the way back, of both the products, and bytes saved for the way back."""

    forward: Line
    backward: Line
    products: Line
    saved: Line

    def at(self, n: int, resting: float = 0.0, train: bool = True) -> Usage:
        """A step on ``n`` samples, beside so many ``resting`` bytes."""
        back = self.backward.at(n)
        return Usage(
            flops=self.forward.at(n) + back,
            samples=n if train else 0,
            steps=1 if train else 0,
            backward=back,
            products=self.products.at(n),
            peak=resting + self.saved.at(n),
        )


def cost(work: Work, x: Tensor, y: Tensor, known: Iterable[Tensor] = ()) -> Cost:
    """What ``work`` on batches of such samples costs; ``known`` tensors are not saved activations."""
    known = list(known)
    told = []
    for n in SMALL:
        rows = torch.arange(n) % len(x)
        a, b = x[rows], y[rows]
        with (saved := Saved(known)):
            ways = count(lambda a=a, b=b: work(a, b))  # type: ignore[misc]
        told.append((ways.forward, ways.backward, ways.products, saved.nbytes))
    return Cost(*(Line.through(low, high) for low, high in zip(*told, strict=True)))


def tensors(thing: Any) -> list[Tensor]:
    """All tensors inside of dicts, lists and tuples."""
    return [t for t in torch.utils._pytree.tree_leaves(thing) if isinstance(t, Tensor)]


def resting(fit: Fit, moving: Params, held: Held, speed: Params | None = None) -> float:
    """Bytes that a training holds through each step: its tensors, their gradients, the optimiser's state."""
    grads = {k: v for k, v in moving.items() if k not in fit.still}
    fixed = tensors((held.buffers, held.peers, held.anchor))
    return nbytes(moving, grads, speed or {}) + once(fixed)


def ran_on(fit: Fit, moving: Params, held: Held) -> Params:
    """The weights that the net runs on: those that move, or what a view makes of them."""
    params = {k: v for k, v in moving.items() if k in fit.model.trainable}
    if fit.view is None:
        return params
    with torch.no_grad():
        return fit.view(params, part(moving, "+"), held.given[-1])[0]


def nbytes(*groups: Params) -> int:
    """Bytes of tensors."""
    return sum(t.numel() * t.element_size() for p in groups for t in p.values())


def density(params: Params) -> float:
    """The share of the entries of weights (tensors of two axes or more) that are not zero."""
    weights = [t for t in params.values() if t.dim() > 1 and t.is_floating_point()]
    total = sum(t.numel() for t in weights)
    return sum(int(t.count_nonzero()) for t in weights) / total if total else 1.0
