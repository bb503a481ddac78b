"""Plain convolutional nets: blocks of convolution, normalisation, ReLU and pooling, then dense layers."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..cover import Axis
from ..model import Model
from .base import Exit, Rows, Stages, assemble, chain, recorded, rows
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
    tanh: bool = False,
    exits: bool = False,
) -> Model:
    """A block for each of ``conv`` (convolution, norm, ReLU, 2x2 max-pooling), dense layers with ReLU, the head.

    ``input`` is channels, height, width.  With ``norm="group"`` a norm group has ``size`` channels and
    is one unit.  ``bias`` is the convolutions', ``dense_bias`` the dense layers'; the head has one.
    With ``tanh`` a dense layer ends with tanh(ReLU(x)).  (ReLU before or after max-pooling is the same.)
    """
    unit = size if norm == "group" else 1
    channels, *sides = input
    layers: dict[str, nn.Module] = {}
    axes: Rows = {}
    stages: Stages = {}
    into: Axis | None = None
    for i, out in enumerate(conv, 1):
        name = f"conv{i}"
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
        stages[name] = channels, into = out, Axis(name, unit)
    area = sides[0] * sides[1]
    width, into = channels * area, into and Axis(into.group, unit * area)
    layers["flatten"] = nn.Flatten()
    for i, out in enumerate(dense, 1):
        name = f"dense{i}"
        layers[name] = chain(linear=nn.Linear(width, out, bias=dense_bias), relu=nn.ReLU())
        if tanh:
            layers[name].add_module("tanh", nn.Tanh())
        axes |= rows(name, layers[name], Axis(name), into)
        width, into = out, Axis(name)
    layers["head"] = nn.Linear(width, classes)
    axes |= rows("head", layers["head"], None, into)
    return assemble(layers, axes, stages, partial(Exit, outputs=classes, over=(2, 3)) if exits else None)


@recorded
def emnist_cnn(classes: int = 62, exits: bool = False) -> Model:
    """The EMNIST net of FedSPU and FLrce (Niu, Dong, Qin): 64,722 parameters."""
    return cnn((1, 28, 28), classes, (20, 20), exits=exits)


@recorded
def cifar_cnn(classes: int = 10, exits: bool = False) -> Model:
    """The CIFAR10 net of FedSPU and FLrce (Niu, Dong, Qin): 134,902 parameters."""
    return cnn((3, 32, 32), classes, (6, 16), (120, 84), dense_bias=False, exits=exits)


@recorded
def cifar100_cnn(classes: int = 100, exits: bool = False) -> Model:
    """The CIFAR100 net of FLrce (Niu, Dong, Qin), with tanh(ReLU(x)) in its dense layers: 142,552 parameters."""
    return cnn((3, 32, 32), classes, (6, 16), (120, 84), dense_bias=False, tanh=True, exits=exits)


@recorded
def speech_cnn(classes: int = 35, exits: bool = False) -> Model:
    """The Google Speech net of FedSPU and FLrce (Niu, Dong, Qin): 26,285 parameters."""
    return cnn((1, 32, 32), classes, (50, 50), kernel=2, stride=2, padding=2, exits=exits)


@recorded
def mnist_cnn(classes: int = 10, exits: bool = False) -> Model:
    """The MNIST net of FedLPS (Xue et al.): 21,840 parameters."""
    return cnn((1, 28, 28), classes, (10, 20), (50,), kernel=5, padding=0, norm="none", exits=exits)
