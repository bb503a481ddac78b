"""The multi-layer perceptron."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..cover import Axis
from ..model import Model
from .base import Exit, Rows, Stages, assemble, chain, recorded, rows


@recorded
def mlp(
    inputs: int = 64,
    hidden: tuple[int, ...] = (32, 32),
    classes: int = 10,
    exits: bool = False,
) -> Model:
    """Linear layers with ReLU between them, on the flattened input; without ``hidden``, a linear model."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    axes: Rows = {}
    stages: Stages = {}
    width, into = inputs, None
    for i, out in enumerate(hidden, 1):
        name = f"dense{i}"
        layers[name] = chain(linear=nn.Linear(width, out), relu=nn.ReLU())
        axes |= rows(name, layers[name], Axis(name), into)
        stages[name] = width, into = out, Axis(name)
    layers["head"] = nn.Linear(width, classes)
    axes |= rows("head", layers["head"], None, into)
    return assemble(layers, axes, stages, partial(Exit, outputs=classes) if exits else None)
