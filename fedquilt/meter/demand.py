"""What training a net asks of a device, counted on two small batches of the run's own data."""

from __future__ import annotations

from torch import Tensor

from ..fit import SGD, Fit
from ..fleet.demand import Demand
from ..key import Key
from ..model import Model
from ..step import begin, gradient, training
from ..task import Task
from ..types import Handle
from .probe import cost, nbytes, resting, tensors


def demand(model: Model, task: Task, x: Tensor, y: Tensor, batch: int = 32, optim: SGD | None = None) -> Demand:
    """That of plain training in batches of this size; ``x`` and ``y`` are some samples, as the net takes them."""
    fit = Fit(model, task, model.params(), Handle(0, "train"), Key(0), optim or SGD(), batch=batch)
    moving, held = begin(fit, y.unique())
    with training(model.net, fit.key):
        told = cost(lambda a, b: gradient(fit, moving, held, a, b), x, y, tensors((moving, held)))
    ways = (told.forward, told.backward)
    speed = moving if fit.optim.momentum else {}
    peak = told.at(batch, resting(fit, moving, held, speed)).peak
    return Demand(sum(w.sample for w in ways), sum(w.step for w in ways), peak, float(nbytes(model.params())), batch)
