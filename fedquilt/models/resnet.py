"""Residual nets for small images (He et al., CVPR 2016): a 3x3 stem without pooling, then basic blocks."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from ..cover import Axis
from ..model import Model
from .base import Exit, Rows, Stages, assemble, chain, recorded, rows
from .norm import Kind, normalise


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is added, projected where its shape differs.

    ``quiet`` names what at zero adds nothing to the input.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Kind, size: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = normalise(norm, after, size)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = normalise(norm, after, size)
        self.quiet = ("conv2" if norm == "none" else "norm2",)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = chain(conv=project, norm=normalise(norm, after, size))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, a ReLU of the sum."""
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + self.shortcut(x)).relu()

    def rows(self, name: str, before: Axis, inner: Axis, after: Axis) -> Rows:
        """Its rows of the axes table: ``inner`` is its own group, ``after`` that of its sum."""
        return {
            **rows(f"{name}.conv1", self.conv1, inner, before),
            **rows(f"{name}.norm1", self.norm1, inner),
            **rows(f"{name}.conv2", self.conv2, after, inner),
            **rows(f"{name}.norm2", self.norm2, after),
            **rows(f"{name}.shortcut", self.shortcut, after, before),
        }


@recorded
def resnet18(
    input: tuple[int, int, int] = (3, 32, 32),
    classes: int = 10,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    blocks: tuple[int, ...] = (2, 2, 2, 2),
    norm: Kind = "batch",
    size: int = 4,
    exits: bool = False,
) -> Model:
    """ResNet-18; ``widths`` and ``blocks`` say the channels and the blocks of each stage.

    All tensors added at a node share one group: a stage's sums are group ``stage1``, the inside of its
    first block is ``stage1.0``; the stem is added to the first stage's sums.  With ``norm="group"`` a
    norm group has ``size`` channels and is one unit.  Any image will do: 3x32x32, 3x64x64, 1x28x28.
    """
    if len(widths) != len(blocks) or min(blocks, default=0) < 1:
        raise ValueError(f"widths {list(widths)} and blocks {list(blocks)} are one positive number a stage each")
    unit = size if norm == "group" else 1
    first = nn.Conv2d(input[0], widths[0], 3, 1, 1, bias=False)
    stem = chain(conv=first, norm=normalise(norm, widths[0], size), relu=nn.ReLU())
    layers: dict[str, nn.Module] = {"stem": stem}
    before, channels = Axis("stage1", unit), widths[0]
    axes = rows("stem", stem, before)
    stages: Stages = {}
    for s, (width, n) in enumerate(zip(widths, blocks, strict=True), 1):
        after = Axis(f"stage{s}", unit)
        stage = nn.Sequential()
        for j in range(n):
            block = Block(channels, width, 2 if s > 1 and j == 0 else 1, norm, size)
            stage.append(block)
            axes |= block.rows(f"stage{s}.{j}", before, Axis(f"stage{s}.{j}", unit), after)
            before, channels = after, width
        layers[f"stage{s}"], stages[f"stage{s}"] = stage, (channels, before)
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(channels, classes)}
    axes |= rows("head", layers["head"], None, before)
    return assemble(layers, axes, stages, partial(Exit, outputs=classes, over=(2, 3)) if exits else None)
