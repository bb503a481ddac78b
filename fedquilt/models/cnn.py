"""Plain convolutional nets: blocks of convolution, normalisation, ReLU and pooling, then dense layers."""

from __future__ import annotations

from torch import nn

from ..cover import Axis
from ..model import Model
from .base import Rows, chain, recorded, rows
from .norm import Kind, normalise


@recorded
def cnn(
    input: tuple[int, int, int] = (1, 28, 28),
    classes: int = 62,
    conv: tuple[int, ...] = (20, 20),
    dense: tuple[int, ...] = (),
    kernel: int = 3,
    stride: int = 1,
    padding: int = 1,
    norm: Kind = "batch",
    size: int = 4,
    bias: bool = True,
    dense_bias: bool = True,
) -> Model:
    """A block for each of ``conv`` (convolution, norm, ReLU, 2x2 max-pooling), dense layers with ReLU, the head.

    ``input`` is channels, height, width.  With ``norm="group"`` a norm group has ``size`` channels and
    is one unit.  ``bias`` is the convolutions', ``dense_bias`` the dense layers'; the head has one.
    """
    unit = size if norm == "group" else 1
    channels, *sides = input
    layers: dict[str, nn.Module] = {}
    axes: Rows = {}
    into: Axis | None = None
    stages = tuple(f"conv{i}" for i in range(1, len(conv) + 1))
    for name, out in zip(stages, conv, strict=True):
        layers[name] = chain(
            conv=nn.Conv2d(channels, out, kernel, stride, padding, bias=bias),
            norm=normalise(norm, out, size),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
        )
        axes |= rows(name, layers[name], Axis(name, unit), into)
        sides = [((n + 2 * padding - kernel) // stride + 1) // 2 for n in sides]
        if min(sides) < 1:
            raise ValueError(f"an input of {input[1]} x {input[2]} is too small: nothing is left of it behind {name}")
        channels, into = out, Axis(name, unit)
    area = sides[0] * sides[1]
    width, into = channels * area, into and Axis(into.group, unit * area)
    layers["flatten"] = nn.Flatten()
    for i, out in enumerate(dense, 1):
        name = f"dense{i}"
        layers[name] = chain(linear=nn.Linear(width, out, bias=dense_bias), relu=nn.ReLU())
        axes |= rows(name, layers[name], Axis(name), into)
        width, into = out, Axis(name)
    layers["head"] = nn.Linear(width, classes)
    axes |= rows("head", layers["head"], None, into)
    return Model(chain(**layers), axes, stages=stages)


@recorded
def emnist_cnn(classes: int = 62) -> Model:
    """The EMNIST net of FedSPU and FLrce (Niu, Dong, Qin): 64,722 parameters."""
    return cnn((1, 28, 28), classes, (20, 20))


@recorded
def cifar_cnn(classes: int = 10) -> Model:
    """The CIFAR10 net of FedSPU and FLrce (Niu, Dong, Qin): 134,902 parameters."""
    return cnn((3, 32, 32), classes, (6, 16), (120, 84), dense_bias=False)


@recorded
def speech_cnn(classes: int = 35) -> Model:
    """The Google Speech net of FedSPU and FLrce (Niu, Dong, Qin): 26,285 parameters."""
    return cnn((1, 32, 32), classes, (50, 50), kernel=2, stride=2, padding=2)
