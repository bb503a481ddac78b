"""The multi-layer perceptron."""

from __future__ import annotations

from torch import nn

from ..cover import Axis
from ..model import Model
from .base import Rows, chain, recorded, rows


@recorded
def mlp(inputs: int = 64, hidden: tuple[int, ...] = (32, 32), classes: int = 10) -> Model:
    """Linear layers with ReLU between them, on the flattened input; without ``hidden``, a linear model."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    axes: Rows = {}
    stages = tuple(f"dense{i}" for i in range(1, len(hidden) + 1))
    width, into = inputs, None
    for name, out in zip(stages, hidden, strict=True):
        layers[name] = chain(linear=nn.Linear(width, out), relu=nn.ReLU())
        axes |= rows(name, layers[name], Axis(name), into)
        width, into = out, Axis(name)
    layers["head"] = nn.Linear(width, classes)
    axes |= rows("head", layers["head"], None, into)
    return Model(chain(**layers), axes, stages=stages)
