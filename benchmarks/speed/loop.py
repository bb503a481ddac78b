"""Federated averaging as one writes it by hand: a loop over clients, in one process.

``author`` is how released code does it: a DataLoader, an optimiser, ``.item()`` after each step.
``tuned`` is the best that plain PyTorch has on one core: resident tensors in channels-last, autograd,
one foreach update.  Both take the orders of the samples that they are told, and torch's own layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

Params = dict[str, Tensor]
Losses = dict[str, float]


class Cnn(nn.Module):
    """The CNNs of W1 and W2, as their authors write them; tensors are named as in this project."""

    def __init__(self, channels: int, side: int, classes: int, conv: Sequence[int], dense: Sequence[int]) -> None:
        super().__init__()
        self.blocks, self.dense = len(conv), len(dense)
        for i, out in enumerate(conv, 1):
            block = nn.Sequential()
            block.add_module("conv", nn.Conv2d(channels, out, 3, padding=1))
            block.add_module("norm", nn.BatchNorm2d(out))
            block.add_module("relu", nn.ReLU())
            block.add_module("pool", nn.MaxPool2d(2))
            self.add_module(f"conv{i}", block)
            channels, side = out, side // 2
        width = channels * side * side
        for i, out in enumerate(dense, 1):
            layer = nn.Sequential()
            layer.add_module("linear", nn.Linear(width, out, bias=False))
            self.add_module(f"dense{i}", layer)
            width = out
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.blocks):
            x = self.get_submodule(f"conv{i + 1}")(x)
        x = x.flatten(1)
        for i in range(self.dense):
            x = F.relu(self.get_submodule(f"dense{i + 1}")(x))
        return self.head(x)


def net(about: dict[str, Any], start: Params) -> nn.Module:
    """The net of a workload, with these tensors."""
    kind = about["model"]
    if kind == "emnist_cnn":
        made: nn.Module = Cnn(1, 28, about["classes"], (20, 20), ())
    elif kind == "cifar_cnn":
        made = Cnn(3, 32, about["classes"], (6, 16), (120, 84))
    else:  # only in our own processes
        from fedquilt.key import Key
        from fedquilt.models import build

        made = build(about["spec"], Key(0)).net
    own = made.state_dict()
    made.load_state_dict({k: start.get(k, v) for k, v in own.items()})
    return made


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def author(made: nn.Module, x: Tensor, y: Tensor, orders: Sequence[Tensor], lr: float, batch: int) -> int:
    """A client's training, as released code does it; how many steps it took."""
    made.train()
    optimiser = torch.optim.SGD(made.parameters(), lr)
    steps, total = 0, 0.0
    for order in orders:
        for xb, yb in DataLoader(Subset(TensorDataset(x, y), order.tolist()), batch):
            optimiser.zero_grad()
            loss = loss_of(made(xb), yb)
            loss.backward()
            optimiser.step()
            total += loss.item()
            steps += 1
    return steps


def tuned(made: nn.Module, x: Tensor, y: Tensor, orders: Sequence[Tensor], lr: float, batch: int) -> int:
    """The same work without what is not needed; ``made`` and ``x`` are in the layout that suits them."""
    made.train()
    params = list(made.parameters())
    steps = 0
    for order in orders:
        for rows in order.split(batch):
            grads = torch.autograd.grad(loss_of(made(x[rows]), y[rows]), params)
            with torch.no_grad():
                torch._foreach_add_(params, grads, alpha=-lr)
            steps += 1
    return steps


CLIENTS = {"author": author, "tuned": tuned}


def laid(x: Tensor) -> Tensor:
    """Channels last, where there are channels."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


class Server:
    """Weighted averaging, statistics included."""

    def __init__(self, made: nn.Module) -> None:
        self.made = made
        self.params = state(made)

    def send(self) -> None:
        self.made.load_state_dict(self.params)

    def merge(self, parts: Sequence[tuple[Params, int]]) -> None:
        total = sum(n for _, n in parts)
        for k, v in self.params.items():
            if v.is_floating_point():
                self.params[k] = sum((n / total) * p[k] for p, n in parts)  # type: ignore[assignment]


def state(made: nn.Module) -> Params:
    return {k: v.detach().clone() for k, v in made.state_dict().items()}


@torch.no_grad()
def scores(made: nn.Module, x: Tensor, y: Tensor, batch: int = 512) -> Losses:
    """The mean loss; and what it would be if batches were normalised by themselves, whatever the statistics."""
    out = {}
    for name, training in (("batch_loss", True), ("loss", False)):
        kept = state(made)
        made.train(training)
        parts = [loss_of(made(a), b) * len(a) for a, b in zip(x.split(batch), y.split(batch), strict=True)]
        made.load_state_dict(kept)
        out[name] = float(torch.stack(parts).sum()) / len(x)
    return out
