"""Tiny nets of every family with data made from a key, and the serial engine on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedquilt.cover import Cover, Params
from fedquilt.engine import Setup
from fedquilt.engine.serial import Serial
from fedquilt.fit import SGD, Fit, Request, Step, Term
from fedquilt.fleet import Device
from fedquilt.key import Key
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.step import Training, training
from fedquilt.task import Classification, NextToken, Regression, Task
from fedquilt.types import Client, Grant, Handle, Memory, Order

KEY = Key(11)
HEAVY = SGD(0.1, momentum=0.9, weight_decay=0.01, clip=0.5)
PLAIN = SGD(0.1)
CNN = {"name": "cnn", "input": (2, 8, 8), "classes": 5}
RESNET = {"name": "resnet18", "input": (2, 8, 8), "classes": 5, "widths": (5, 6), "blocks": (1, 1)}

SPECS: Mapping[str, dict[str, Any]] = {
    "mlp": {"name": "mlp", "inputs": 128, "hidden": (7, 6), "classes": 5},
    "mlp-exits": {"name": "mlp", "inputs": 128, "hidden": (7, 6), "classes": 5, "exits": True},
    "linear": {"name": "mlp", "inputs": 4, "hidden": (), "classes": 2},
    "cnn": {**CNN, "conv": (4, 5), "dense": (6,)},
    "cnn-group": {**CNN, "conv": (4, 6), "dense": (6,), "norm": "group", "size": 2},
    "cnn-none": {**CNN, "conv": (4, 5), "norm": "none"},
    "resnet": RESNET,
    "lstm": {"name": "lstm", "vocabulary": 9, "embed": 4, "hidden": (5, 6)},
    "lstm-tied": {"name": "lstm", "vocabulary": 9, "embed": 4, "hidden": (5, 4), "tied": True},
}
TASKS: Mapping[str, Task] = {"linear": Regression(), "lstm": NextToken(9, (0, 2)), "lstm-tied": NextToken(9)}


@cache
def tiny(name: str) -> Model:
    """The net of this name."""
    return build(SPECS[name], KEY.at("net", name))


def task(name: str) -> Task:
    """What the net learns."""
    return TASKS.get(name, Classification(5))


def samples(name: str, n: int, key: Key = KEY, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Inputs and targets that have something to do with one another."""
    g = key.at("data", name).torch()
    if name.startswith("lstm"):
        x = torch.randint(9, (n, 6), generator=g)
        return x, (x * 2 + 1) % 9
    if name == "linear":
        x = torch.randn(n, 4, generator=g).to(dtype)
        return x, torch.stack([x.sum(1), x[:, 0] - x[:, 1]], 1) + 0.1
    y = torch.randint(5, (n,), generator=g)
    x = torch.randn(n, 2, 8, 8, generator=g) + y.view(-1, 1, 1, 1) * 0.3
    return x.to(dtype), y


def weights(model: Model, key: Key = KEY, dtype: torch.dtype = torch.float32) -> Params:
    """Tensors that are all different: a fresh net's norms are all ones and zeros, and hide mistakes."""
    return {
        k: (v + 0.2 * torch.rand(v.shape, generator=key.at(k).torch())).to(dtype) for k, v in model.params().items()
    }


def fit(name: str, **settings: Any) -> Fit:
    """A short training of the net of this name, on the data ``Handle(0, "train")``."""
    model = tiny(name)
    given = {"start": weights(model), "data": Handle(0, "train"), "key": KEY.at("fit"), "batch": 4} | settings
    return Fit(**({"model": model, "task": task(name)} | given))


def every_other(name: str) -> Cover:
    """Every other unit of every group."""
    m = tiny(name)
    return m.cover({g: torch.arange(0, n, 2) for g, n in m.groups.items()})


def scattered(name: str) -> Cover:
    """Random coordinates; of one tensor none, of another all."""
    m = tiny(name)
    rows = {k: torch.rand(s, generator=KEY.at("free", k).torch()) < 0.4 for k, s in m.shapes.items()}
    first, *_, last = sorted(m.trainable)
    return Cover.masks(rows | {first: torch.zeros(m.shapes[first]).bool(), last: torch.ones(m.shapes[last]).bool()})


@dataclass(eq=False)
class Recording(Serial):
    """The serial engine, which remembers what it was asked."""

    asked: list[Request] = field(default_factory=list)

    def answer(self, request: Any, usage: Any = None) -> Any:
        self.asked.append(request)
        return super().answer(request, usage)


def engine(name: str, n: int = 10, layout: str = "contiguous", strict: bool = True, others: Any = None) -> Recording:
    """An engine on ``n`` samples for ``train``, and some for the other splits."""
    parts = {"train": n, "val": 5, "test": 7}
    held: dict[Any, Any] = {Handle(0, s): samples(name, m, KEY.at(s)) for s, m in parts.items()}
    return Recording(held | (others or {}), Setup("serial", layout, 1), strict)


def client(model: Model, task: Task, device: Device | None = None, **more: Any) -> Client:
    """Client 0."""
    settings = {"memory": Memory(), "device": device or Device(), "key": KEY.at("client"), "counts": {"train": 10}}
    return Client(0, model, task, **(settings | more))


def order(params: Params, cover: Any, norm: str = "shared", **more: Any) -> Order:
    """Work for client 0 on these tensors."""
    return Order("tiny", 0, 0, 0, params, cover, Grant(cover), scalars={"norm": norm}, **more)


def drive(engine: Serial, work: Any) -> Any:
    """What a generator returns."""
    return engine._drive(work, [])


SEEN: list[Any] = []


@dataclass(frozen=True)
class Recorder(Term):
    """Adds nothing, and writes down what the net ran on (a test's trick: a term for use may not do so)."""

    def __call__(self, s: Step) -> Tensor:
        SEEN.append({k: v.detach().clone() for k, v in s.used.items()})
        return s.out.logits.sum() * 0


def recorded(f: Fit, n: int = 10) -> list[Params]:
    """What the net ran on in each step of a training (of the steps alone: engines run some only to count them)."""
    SEEN.clear()
    x, y = samples(f.model.name, n)
    run = Training.of(replace(f, terms=(*f.terms, Recorder())), y.unique())
    with training(f.model.net, f.key):
        for step, rows in enumerate(f.batches(n)):
            run.step(x[rows], y[rows], f.slices.at(step) if f.slices else None)
    return SEEN[:]


def same(a: Params, b: Params) -> bool:
    """Equal names and bits."""
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def close(a: Params, b: Params, digits: int = 6) -> bool:
    """Equal names, and values but for rounding."""
    return a.keys() == b.keys() and all(
        torch.allclose(v, b[k], rtol=10**-digits, atol=10**-digits) for k, v in a.items()
    )
