"""Summands of a local objective, and what a net may run on instead of its plain parameters.

Inside a step only tensors: see :mod:`fedquilt.fit` for what a term must not do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cover import Params
from ..fit import Fit, Given, Step, TaskLoss, Term, View, Watch
from ..model import Model


@dataclass(frozen=True)
class Proximal(Term):
    r"""FedProx: :math:`\frac{\mu}{2} \lVert \theta - \theta^t \rVert^2` over what is trained, never over statistics."""

    mu: float

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu is a number, at least 0, not {self.mu}")

    def __call__(self, s: Step) -> Tensor:
        """Half mu times the squared distance to the anchor."""
        far = torch.stack([(p - s.anchor[k]).pow(2).sum() for k, p in s.params.items()])
        return self.mu / 2 * far.sum()


@dataclass(frozen=True)
class SeenClasses(Term):
    """HeteroFL's masked loss: what the net says of classes that the client does not hold counts as zero.

    Where targets are not classes, it is the task's loss.
    """

    def given(self, fit: Fit, labels: Tensor) -> Given:
        """Which classes the client holds (all, where there are no classes)."""
        rows = next(v.shape[0] for k, v in fit.start.items() if k.startswith(fit.model.head + "."))
        if labels.is_floating_point():
            return {"seen": torch.ones(rows, dtype=torch.bool)}
        return {"seen": torch.zeros(rows, dtype=torch.bool).index_fill(0, labels, True)}

    def __call__(self, s: Step) -> Tensor:
        """The task's loss with the other outputs at zero."""
        return s.mean(*s.task.loss(torch.where(s.given["seen"], s.out.logits, 0.0), s.y))


@dataclass(frozen=True)
class Scaler(View):
    """HeteroFL's scaler: what hidden layers say is divided by the sub-model's width, in training only."""

    names: tuple[str, ...]
    rate: float

    @staticmethod
    def of(model: Model, rate: float) -> Scaler:
        """The scaler of a model: weights (and their biases) whose rows are units; norm layers are not scaled."""
        rows = [k for k, t in model.axes.items() if len(t) > 1 and t[0] is not None]
        biases = [b for k in rows if (b := k.replace("weight", "bias")) != k and b in model.axes]
        return Scaler(tuple(sorted({*rows, *biases})), rate)

    def __call__(self, params: Params, extra: Params, given: Given) -> tuple[Params, Params]:
        """The scaled weights; everything may move."""
        return {k: v / self.rate if k in self.names else v for k, v in params.items()}, {}


@dataclass(frozen=True)
class SquaredLoss(Watch):
    """The squares of the samples' losses while they are trained on, and how many samples: Oort's statistics."""

    def start(self, fit: Fit) -> Params:
        """Nothing seen."""
        return {k: torch.zeros((), dtype=torch.float64) for k in ("loss_squared", "loss_count")}

    def see(self, s: Step) -> Params:
        """The sums over a batch."""
        each, weight = s.task.loss(s.out.logits, s.y)
        weight = torch.ones_like(each) if weight is None else weight
        weight = weight if s.weights is None else weight * s.weights
        return {"loss_squared": (each.detach().square() * weight).sum(), "loss_count": weight.sum()}

    def add(self, so_far: Params, seen: Params, grads: Params) -> Params:
        """The sums with one batch more."""
        return {k: v + seen[k] for k, v in so_far.items()}


TERMS: Mapping[str, type[Term]] = {t.__name__: t for t in (TaskLoss, Proximal, SeenClasses)}
VIEWS: Mapping[str, type[View]] = {v.__name__: v for v in (Scaler,)}
WATCHES: Mapping[str, type[Watch]] = {w.__name__: w for w in (SquaredLoss,)}
