"""VGG for small images (Simonyan and Zisserman, ICLR 2015), with one linear layer, as FedLPS has it.

FedLPS (Xue et al.) trains these with batch statistics in evaluation too: that is the policy ``batch``.
"""

from __future__ import annotations

from ..model import Model
from .base import recorded
from .convnet import convnet
from .norm import Kind


@recorded
def vgg11(
    input: tuple[int, int, int] = (3, 32, 32),
    classes: int = 10,
    norm: Kind = "batch",
    size: int = 4,
    scale: float = 1.0,
    exits: bool = False,
) -> Model:
    """VGG-11, for CIFAR10 9,231,114 parameters; see :func:`convnet` for the settings."""
    return vgg(input, classes, (1, 1, 2, 2, 2), norm, size, scale, exits)


@recorded
def vgg13(
    input: tuple[int, int, int] = (3, 32, 32),
    classes: int = 100,
    norm: Kind = "batch",
    size: int = 4,
    scale: float = 1.0,
    exits: bool = False,
) -> Model:
    """VGG-13, for CIFAR100 9,462,180 parameters; see :func:`convnet` for the settings."""
    return vgg(input, classes, (2, 2, 2, 2, 2), norm, size, scale, exits)


@recorded
def vgg16(
    input: tuple[int, int, int] = (3, 64, 64),
    classes: int = 200,
    norm: Kind = "batch",
    size: int = 4,
    scale: float = 1.0,
    exits: bool = False,
) -> Model:
    """VGG-16, for Tiny-ImageNet 15,132,936 parameters; see :func:`convnet` for the settings."""
    return vgg(input, classes, (2, 2, 3, 3, 3), norm, size, scale, exits)


def vgg(
    input: tuple[int, int, int],
    classes: int,
    layers: tuple[int, ...],
    norm: Kind,
    size: int,
    scale: float,
    exits: bool,
) -> Model:
    """So many layers in each of five stages, of 64 to 512 channels; what the last pooling leaves is laid flat."""
    conv = [width for width, n in zip((64, 128, 256, 512, 512), layers, strict=True) for _ in range(n)]
    pool = tuple(sum(layers[: i + 1]) for i in range(len(layers)))
    return convnet(input, classes, tuple(conv), pool, norm=norm, size=size, scale=scale, flat=True, exits=exits)
