"""Normalisation layers that a net keeps when it is cut: their shapes come from the tensors at hand."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["batch", "group", "none"]


class BatchNorm(nn.Module):
    """Batch normalisation over inputs of shape (N, C), (N, C, L) or (N, C, H, W).

    Bit for bit torch's, but for two things.  It counts no batches (such a count is an integer that no
    average over clients can mean).  And a training batch with one value a channel, which has no
    variance and which torch refuses, is normalised with the running statistics and does not move them.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        start(self)
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input; in training the running statistics are written in place."""
        batch = self.training and x.numel() != x.shape[1]
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, batch, self.momentum, self.eps
        )

    def extra_repr(self) -> str:
        """The settings, for ``print(net)``."""
        return f"{len(self.weight)}, eps={self.eps}, momentum={self.momentum}"


class GroupNorm(nn.Module):
    """Group normalisation with groups of ``size`` channels, as many as the input has.

    A net is cut by whole norm groups, so what remains of a cut net is normalised as it was before.
    """

    def __init__(self, size: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        if size < 1 or channels % size:
            raise ValueError(f"{channels} channels are no multiple of a norm group's {size}: change one of the two")
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        start(self)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        # not F.group_norm, which refuses a batch of one value a group but not two such batches put together
        return torch.group_norm(x, x.shape[1] // self.size, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The settings, for ``print(net)``."""
        return f"{self.size}, {len(self.weight)}, eps={self.eps}"


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, over as much of it as the input has."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        start(self)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised input."""
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The settings, for ``print(net)``."""
        return f"{len(self.weight)}, eps={self.eps}"


def start(layer: BatchNorm | GroupNorm | LayerNorm) -> None:
    """The weights that a normalisation begins with: it scales and moves nothing."""
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)


def normalise(kind: Kind, channels: int, size: int) -> nn.Module:
    """The layer that a net's setting ``norm`` asks for; ``size`` is the channels of a norm group."""
    if kind == "batch":
        return BatchNorm(channels)
    if kind == "group":
        return GroupNorm(size, channels)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"no normalisation is called {kind!r}; there are batch, group and none")
