"""Tiny nets of every family of the zoo, and what the laws do with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from fedquilt.cover import Params
from fedquilt.key import Key
from fedquilt.model import Model
from fedquilt.term import call

KEY = Key(7)
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Family:
    """A tiny net: its spec, its input, and the settings of the net built at other numbers of units."""

    spec: Mapping[str, object]
    shape: tuple[int, ...]
    slim: Callable[[Sizes], dict[str, object]]
    tokens: int = 0
    classes: int = 5

    def inputs(self, key: Key, batch: int = 6) -> tuple[Tensor, Tensor]:
        g = key.torch()
        if self.tokens:
            x, y = torch.randint(self.tokens, (2, batch, *self.shape), generator=g)
            return x, y
        return torch.randn(batch, *self.shape, generator=g).double(), torch.randint(self.classes, (batch,), generator=g)


def cnn(denses: tuple[int, ...] = (), input: tuple[int, ...] = (2, 8, 12), **settings: object) -> Family:
    spec = {"name": "cnn", "input": input, "classes": 5, "dense": denses, **settings}
    size = 2 if settings.get("norm") == "group" else 1

    def slim(n: Sizes) -> dict[str, object]:
        return {
            "conv": [n[g] * size for g in n if g.startswith("conv")],
            "dense": [n[g] for g in n if g.startswith("dense")],
        }

    return Family(spec, input, slim)


def residual(size: int, **settings: object) -> Family:
    spec = {"name": "resnet18", "input": (2, 8, 8), "classes": 5, "size": size, **settings}
    return Family(spec, (2, 8, 8), lambda n: {"widths": [n[f"stage{i}"] * size for i in (1, 2)]})


def deep(input: tuple[int, ...], size: int, **settings: object) -> Family:
    spec = {"name": "convnet", "input": input, "classes": 5, "size": size, **settings}
    return Family(spec, input, lambda n: {"conv": [n[g] * size for g in n], "scale": 1.0})


def attentive(shape: tuple[int, ...], tokens: int, **settings: object) -> Family:
    spec = {"width": 7, "heads": 3, "per_head": 2, "hidden": 5, "blocks": 2, "exits": True, **settings}
    return Family(
        spec,
        shape,
        lambda n: {"width": n["stream"], "heads": n["block1.heads"], "hidden": n["block1.hidden"]},
        tokens,
    )


def sized(spec: Mapping[str, object], shape: tuple[int, ...], tokens: int = 0) -> Family:
    """Nets whose settings are not about each group."""
    return Family(spec, shape, lambda n: {"units": dict(n)}, tokens)


LSTM = {"name": "lstm", "vocabulary": 11, "embed": 5}

FAMILIES = {
    "cnn-batch": cnn((11, 7), conv=(5, 10), norm="batch", dense_bias=False),
    "cnn-group": cnn((6,), conv=(8, 10), norm="group", size=2, bias=False),
    "cnn-none": cnn(conv=(5, 6), norm="none", kernel=5, padding=0, input=(1, 16, 16), exits=True),
    "cnn-strided": cnn(conv=(5, 6), input=(1, 16, 16), kernel=2, stride=2, padding=2),
    "cnn-tanh": cnn((6, 4), conv=(5,), tanh=True),
    "cnn-cut": sized(
        {"name": "cnn", "input": (2, 8, 8), "conv": (5, 6, 4), "classes": 5, "exits": True, "depth": 2}, (2, 8, 8)
    ),
    "convnet-2d": deep((2, 8, 12), 1, conv=(5, 4, 6), pool=(1, 3), flat=True),
    "convnet-1d": deep((3, 19), 1, conv=(5, 4, 6, 4), pool=(1, 3), norm="batch", exits=True),
    "convnet-group": deep((3, 12), 2, conv=(16, 8, 16), pool=(2,), norm="group", scale=0.5),
    "vgg": sized({"name": "vgg11", "input": (2, 32, 32), "classes": 5, "scale": 1 / 24, "exits": True}, (2, 32, 32)),
    "vgg-group": sized(
        {"name": "vgg11", "input": (2, 32, 32), "classes": 5, "scale": 1 / 8, "norm": "group"}, (2, 32, 32)
    ),
    "motion-group": sized(
        {"name": "motion_cnn", "input": (2, 16), "classes": 5, "means": "small", "scale": 1 / 8, "norm": "group"},
        (2, 16),
    ),
    "motion": sized({"name": "motion_cnn", "input": (2, 16), "classes": 5, "means": "small", "scale": 1 / 24}, (2, 16)),
    "resnet-batch": residual(1, widths=(5, 10), blocks=(1, 2), norm="batch", exits=True),
    "resnet-group": residual(2, widths=(8, 10), blocks=(2, 1), norm="group"),
    "lstm": Family(
        {**LSTM, "hidden": (6, 10), "exits": True},
        (4,),
        lambda n: {"embed": n["embed"], "hidden": [n["lstm1"], n["lstm2"]]},
        tokens=11,
    ),
    "lstm-tied": Family(
        {**LSTM, "hidden": (10, 5), "tied": True, "exits": True},
        (4,),
        lambda n: {"embed": n["embed"], "hidden": [n["lstm1"], n["embed"]]},
        tokens=11,
    ),
    "transformer": attentive((4,), 11, name="transformer", vocabulary=11, length=5),
    "vit": attentive((2, 4, 6), 0, name="vit", input=(2, 4, 6), classes=5, patch=2),
    "mlp": Family(
        {"name": "mlp", "inputs": 12, "hidden": (5, 10), "classes": 5, "exits": True},
        (3, 4),
        lambda n: {"hidden": [n["dense1"], n["dense2"]]},
    ),
}
NAMED = {"cifar_cnn", "cifar100_cnn", "emnist_cnn", "mnist_cnn", "reddit_lstm", "speech_cnn", "vgg13", "vgg16"}


def scrambled(m: Model, key: Key) -> Params:
    """Float64 tensors that are all different: a fresh net's norms are all ones and zeros, and hide mistakes."""
    return {
        k: v.double() + 0.5 * torch.rand(v.shape, generator=key.at(k).torch(), dtype=torch.float64) - 0.25
        for k, v in m.params().items()
    }


def said(m: Model, tensors: Params, x: Tensor) -> Tensor:
    """All that the net says of a batch: what its exits say, then its own output."""
    out = call(m.net, tensors, x, m.exits)
    return torch.stack([*(out.features[e] for e in m.exits), out.logits])


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    """The cross-entropies of all that it says, summed."""
    return torch.stack([F.cross_entropy(o.flatten(0, -2), y.flatten()) for o in out]).sum()


def learn(m: Model, p: Params, x: Tensor, y: Tensor, training: bool) -> tuple[Tensor, Params, Params]:
    """What the net says, the gradient of its loss, and the statistics as it leaves them."""
    m.net.train(training)
    free = {k: p[k].clone().requires_grad_() for k in m.trainable}
    held = {k: v.clone() for k, v in p.items() if k not in free}
    out = said(m, free | held, x)
    return out.detach(), dict(zip(free, torch.autograd.grad(loss_of(out, y), list(free.values())), strict=True)), held


def near(a: Tensor, b: Tensor, digits: int = 9) -> bool:
    return torch.allclose(a, b, rtol=10**-digits, atol=10**-digits)


def size_of(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(map(prod, shapes.values()))
