"""What every builder of a model uses: layers by name and in order, exits, rows of the axes table, and its spec."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..cover import Axis
from ..model import Model
from ..schema import recorded

__all__ = ["Exit", "Rows", "Staged", "Stages", "assemble", "chain", "recorded", "rows"]

Rows = dict[str, tuple[Axis | None, ...]]
Stages = dict[str, tuple[int, Axis]]  # how wide the output of each stage is, and whose units it is made of


def chain(**layers: nn.Module) -> nn.Sequential:
    """These layers one after another, under these names."""
    return nn.Sequential(OrderedDict(layers))


def rows(name: str, layer: nn.Module, out: Axis | None, into: Axis | None = None) -> Rows:
    """The table rows of a layer: the first axis of each of its tensors is ``out``, the second ``into``.

    This fits convolutions, linear layers and normalisation layers; other axes are of no group.
    """
    table = {f"{name}.{k}": (out, into, None, None, None)[: v.dim()] for k, v in layer.state_dict().items()}
    return {k: row for k, row in table.items() if any(row)}


class Staged(nn.Module):
    """Layers one after another; where a layer has an exit, that looks at the layer's output, whoever asks for it.

    What the net says is what its last layer says, or that layer's exit; as an :meth:`ensemble`, the mean of
    that and of what all other exits say.
    """

    together = False

    def __init__(self, layers: Mapping[str, nn.Module], exits: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.order, self.left = tuple(layers), tuple(exits)
        for name, layer in layers.items():
            self.add_module(name, layer)
        if exits:
            self.exits = nn.ModuleDict(exits)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the last layer, or of its exit; of an ensemble, the mean over the heads."""
        said: list[Tensor] = []
        for name in self.order:
            x = out = self.layer(name, x)
            if name in self.left:
                out = self.exits[name](x)
                said.append(out)
        if self.together and said:
            said = said if self.order[-1] in self.left else [*said, out]
            return torch.stack(said).mean(0)
        return out

    def ensemble(self) -> Staged:
        """The same layers, of which all heads speak."""
        same = copy(self)
        same.together = True
        return same

    def layer(self, name: str, x: Tensor) -> Tensor:
        """The output of one layer."""
        return self.get_submodule(name)(x)

    def upto(self, stage: str) -> Staged:
        """The same layers, but none after this one."""
        order = self.order[: self.order.index(stage) + 1]
        return Staged(
            {name: self.get_submodule(name) for name in order},
            {name: self.exits[name] for name in self.left if name in order},
        )


class Exit(nn.Linear):
    """A small classifier of a stage's output: its mean over the axes ``over``, then a linear layer.

    With ``settle`` each vector is normalised first, as a residual stream is before its head.
    """

    def __init__(self, width: int, outputs: int, over: tuple[int, ...] = (), settle: bool = False) -> None:
        super().__init__(width, outputs)
        self.over, self.settle = over, settle

    def forward(self, x: Tensor) -> Tensor:
        """A score for each class."""
        x = F.layer_norm(x, x.shape[-1:]) if self.settle else x
        return super().forward(x.mean(self.over) if self.over else x)


def assemble(
    layers: Mapping[str, nn.Module],
    axes: Rows,
    stages: Stages,
    leave: Callable[[int], Exit] | None,
    net: type[Staged] = Staged,
) -> Model:
    """The model of these layers; ``leave`` makes the exit of a stage of some width (the last has the head)."""
    exits = {s: leave(width) for s, (width, _) in list(stages.items())[:-1]} if leave else {}
    for s, layer in exits.items():
        axes |= rows(f"exits.{s}", layer, None, stages[s][1])
    return Model(net(layers, exits), axes, stages=tuple(stages), exits=tuple(f"exits.{s}" for s in exits))
