"""Small transformers, for text and for images: attention and a hidden layer, each added to a stream (pre-norm).

Embeddings, norms and what is added all have the axis of the stream, one group ``stream``.  A unit of
a block's attention is a whole head, so the size of a head does not change when heads are cut.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ..cover import Axis
from ..model import Model
from .base import Exit, Rows, Stages, assemble, chain, recorded, rows
from .norm import LayerNorm

STREAM = Axis("stream")


class Attention(nn.Module):
    """Attention of heads of ``per_head`` entries, as many as its tensors have; ``causal``: to no later position."""

    def __init__(self, width: int, heads: int, per_head: int, causal: bool) -> None:
        super().__init__()
        self.per_head, self.causal = per_head, causal
        self.qkv = nn.Linear(width, 3 * heads * per_head)
        self.project = nn.Linear(heads * per_head, width)

    def forward(self, x: Tensor) -> Tensor:
        """What each position [B, T, D] gathers from the others."""
        parts = self.qkv(x).unflatten(-1, (3, -1, self.per_head))  # [B, T, 3, heads, per_head]
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        scores = q @ k.mT * self.per_head**-0.5
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return self.project((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a hidden layer with GELU: of each the input is the normalised stream, the output is added to it.

    ``quiet`` names what at zero adds nothing.
    """

    quiet = ("attention.project", "project")

    def __init__(self, width: int, heads: int, per_head: int, hidden: int, causal: bool) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width)
        self.attention = Attention(width, heads, per_head, causal)
        self.norm2 = LayerNorm(width)
        self.hidden = nn.Linear(width, hidden)
        self.gelu = nn.GELU()
        self.project = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind the block."""
        x = x + self.attention(self.norm1(x))
        return x + self.project(self.gelu(self.hidden(self.norm2(x))))

    def rows(self, name: str) -> Rows:
        """Its rows of the axes table; a head owns one block of rows in each of query, key and value."""
        heads, hidden, per_head = f"{name}.heads", Axis(f"{name}.hidden"), self.attention.per_head
        return {
            **rows(f"{name}.norm1", self.norm1, STREAM),
            **rows(f"{name}.attention.qkv", self.attention.qkv, Axis(heads, per_head, 3), STREAM),
            **rows(f"{name}.attention.project", self.attention.project, STREAM, Axis(heads, per_head)),
            **rows(f"{name}.norm2", self.norm2, STREAM),
            **rows(f"{name}.hidden", self.hidden, hidden, STREAM),
            **rows(f"{name}.project", self.project, STREAM, hidden),
        }


class Table(nn.Embedding):
    """An embedding of words at the scale that a stream begins with."""

    def reset_parameters(self) -> None:
        """Draw it."""
        nn.init.normal_(self.weight, std=0.02)


class Positions(Table):
    """An embedding of each position, added to what stands there."""

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        if x.shape[-2] > len(self.weight):
            raise ValueError(f"a sequence of {x.shape[-2]} is longer than the {len(self.weight)} positions known")
        return x + self.weight[: x.shape[-2]]


class Patches(nn.Conv2d):
    """A vector for each patch of an image, in the order of reading."""

    def forward(self, x: Tensor) -> Tensor:
        """Vectors [B, patches, D]."""
        return super().forward(x).flatten(2).mT


class Mean(nn.Module):
    """The mean over the positions."""

    def forward(self, x: Tensor) -> Tensor:
        """Vectors [B, D]."""
        return x.mean(1)


@recorded
def transformer(
    vocabulary: int = 80,
    length: int = 80,
    width: int = 64,
    heads: int = 4,
    per_head: int = 16,
    hidden: int = 256,
    blocks: int = 2,
    exits: bool = False,
) -> Model:
    """A next-token model: tokens [B, T], T at most ``length``, to scores [B, T, vocabulary].

    A block has ``heads`` heads of ``per_head`` entries and a hidden layer; ``width`` is the stream's.
    The vocabulary is never cut.
    """
    embed = chain(words=Table(vocabulary, width), positions=Positions(length, width))
    axes: Rows = {"embed.words.weight": (None, STREAM), "embed.positions.weight": (None, STREAM)}
    leave = partial(Exit, outputs=vocabulary, settle=True) if exits else None
    make = partial(Block, width, heads, per_head, hidden, causal=True)
    return stacked(embed, axes, make, blocks, width, {"head": nn.Linear(width, vocabulary)}, leave)


@recorded
def vit(
    input: tuple[int, int, int] = (3, 32, 32),
    classes: int = 10,
    patch: int = 4,
    width: int = 64,
    heads: int = 4,
    per_head: int = 16,
    hidden: int = 256,
    blocks: int = 4,
    exits: bool = False,
) -> Model:
    """A small transformer for images, which are cut into patches of ``patch`` x ``patch``; their mean is classified.

    After Dosovitskiy et al. (ICLR 2021); the mean stands for their class token.
    """
    channels, *sides = input
    if any(n % patch for n in sides):
        raise ValueError(f"an image of {sides[0]} x {sides[1]} is not cut evenly into patches of {patch} x {patch}")
    area = sides[0] // patch * (sides[1] // patch)
    embed = chain(patches=Patches(channels, width, patch, patch), positions=Positions(area, width))
    axes: Rows = {**rows("embed.patches", embed[0], STREAM), "embed.positions.weight": (None, STREAM)}
    leave = partial(Exit, outputs=classes, over=(1,), settle=True) if exits else None
    make = partial(Block, width, heads, per_head, hidden, causal=False)
    return stacked(embed, axes, make, blocks, width, {"mean": Mean(), "head": nn.Linear(width, classes)}, leave)


def stacked(
    embed: nn.Module,
    axes: Rows,
    make: partial[Block],
    blocks: int,
    width: int,
    tail: dict[str, nn.Module],
    leave: partial[Exit] | None,
) -> Model:
    """Embeddings, so many blocks, a last norm, and what makes the outputs."""
    stack = {f"block{i}": make() for i in range(1, blocks + 1)}
    for name, block in stack.items():
        axes |= block.rows(name)
    norm = LayerNorm(width)
    axes |= rows("norm", norm, STREAM) | rows("head", tail["head"], None, STREAM)
    stages: Stages = {name: (width, STREAM) for name in stack}
    return assemble({"embed": embed, **stack, "norm": norm, **tail}, axes, stages, leave)
