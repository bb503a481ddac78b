"""Plain deep convolutional nets in one and two dimensions: layers in a row, max-pooling behind some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

from torch import nn

from ..cover import Axis, count_units
from ..model import Model
from .base import Exit, Rows, Stages, assemble, chain, recorded, rows
from .norm import Kind, normalise

LAYERS = {1: (nn.Conv1d, nn.MaxPool1d, nn.AdaptiveAvgPool1d), 2: (nn.Conv2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)}


@recorded
def convnet(
    input: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    conv: tuple[int, ...] = (128, 64, 128, 256, 512),
    pool: tuple[int, ...] = (1, 3, 5),
    kernel: int = 3,
    norm: Kind = "batch",
    size: int = 4,
    scale: float = 1.0,
    flat: bool = False,
    exits: bool = False,
) -> Model:
    """A layer for each of ``conv`` (convolution that keeps the sides, norm, ReLU), 2-pooling after those of ``pool``.

    The defaults are the net of Mishra and Gupta (TOSN 2023), who state its widths alone.  ``input`` is
    channels and one or two sides.  Every width is taken ``scale`` times.  A stage ends where pooling does.
    Before the head the sides are averaged away; with ``flat`` they are laid flat instead.  With
    ``norm="group"`` a norm group has ``size`` channels and is one unit.
    """
    if len(input) not in (2, 3) or kernel % 2 == 0 or not conv:
        raise ValueError(f"input {list(input)} is channels and one or two sides, kernel {kernel} odd, conv not empty")
    conv_of, pool_of, mean_of = LAYERS[len(input) - 1]
    unit = size if norm == "group" else 1
    channels, *sides = input
    layers: dict[str, nn.Module] = {}
    axes: Rows = {}
    stages: Stages = {}
    into: Axis | None = None
    for s, widths in enumerate(split(conv, pool), 1):
        stage = layers[f"stage{s}"] = nn.Sequential()
        for i, width in enumerate(widths, 1):
            out = width if scale == 1 else unit * count_units(scale, width // unit)
            layer = chain(
                conv=conv_of(channels, out, kernel, padding=kernel // 2),
                norm=normalise(norm, out, size),
                relu=nn.ReLU(),
            )
            stage.add_module(f"conv{i}", layer)
            group = Axis(f"stage{s}.conv{i}", unit)
            axes |= rows(group.group, layer, group, into)
            stages[f"stage{s}"] = channels, into = out, group
        if s <= len(pool):
            stage.add_module("pool", pool_of(2))
            sides = [n // 2 for n in sides]
        if min(sides) < 1:
            raise ValueError(f"an input of {input[1:]} is too small: nothing is left of it behind stage{s}")
    if flat:
        channels, into = channels * math.prod(sides), Axis(group.group, unit * math.prod(sides))
    else:
        layers["mean"] = mean_of(1)
    layers |= {"flatten": nn.Flatten(), "head": nn.Linear(channels, classes)}
    axes |= rows("head", layers["head"], None, into)
    over = tuple(range(2, len(input) + 1))
    return assemble(layers, axes, stages, partial(Exit, outputs=classes, over=over) if exits else None)


def split(conv: tuple[int, ...], pool: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The layers of each stage: a stage ends with its pooling."""
    ends = [*pool, *([] if len(conv) in pool else [len(conv)])]
    if ends != sorted({*ends}) or not 1 <= ends[0] <= ends[-1] <= len(conv):
        raise ValueError(f"pool {list(pool)} says behind which of the {len(conv)} layers, in order, pooling comes")
    return [conv[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


MOTION: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "small": ((128, 64, 128), (1, 3)),
    "adequate": ((128, 64, 128, 256, 512), (1, 3, 5)),
    "large": ((128, 64, 128, 256, 512, 512, 512), (1, 3, 5, 7)),
}


@recorded
def motion_cnn(
    input: tuple[int, ...] = (9, 300),
    classes: int = 6,
    means: Literal["small", "adequate", "large"] = "adequate",
    norm: Kind = "batch",
    size: int = 4,
    scale: float = 1.0,
    exits: bool = False,
) -> Model:
    """The nets for motion data of Mishra and Gupta (TOSN 2023): 3, 5 or 7 layers, for a device's ``means``.

    They state the numbers of layers alone.  Here each net is the beginning of the next: ``small`` is the
    first two stages of ``adequate``, which is the five-layer net, and that the first three of ``large``.
    """
    conv, pool = MOTION[means]
    return convnet(input, classes, conv, pool, norm=norm, size=size, scale=scale, exits=exits)
