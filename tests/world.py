"""Tiny worlds: every family of nets with data made from a key, ready to run any method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from fedquilt.data import Dataset, Shards, deal, iid
from fedquilt.data.ready import Prepare
from fedquilt.drive.sim import Now, Round, Simulator
from fedquilt.drive.site import Here
from fedquilt.engine import Setup
from fedquilt.engine.serial import Serial
from fedquilt.fleet import Fleet, tiers
from fedquilt.key import Key
from fedquilt.method import Method
from fedquilt.model import Model
from fedquilt.models import build, builder_of
from fedquilt.parts.schedule import Buffered
from fedquilt.store import InRam, Memories
from fedquilt.task import Classification, NextToken, Regression, Task


@dataclass(frozen=True)
class Family:
    """A tiny net and the kind of data that it learns from."""

    model: Mapping[str, Any]
    task: Task = Classification(4)
    shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 4

    def data(self, n: int, key: Key) -> Dataset:
        g = key.torch()
        if isinstance(self.task, NextToken):
            x = torch.randint(self.classes, (n, *self.shape), generator=g)
            y = (x * 3 + 1) % self.classes
            return Dataset("tiny", x, y, self.task, self.shape, self.classes, Prepare(tokens=True))
        y: Tensor = torch.randint(self.classes, (n,), generator=g)
        x = torch.randn(n, *self.shape, generator=g) + y.view(-1, *[1] * len(self.shape)) * 0.5
        if isinstance(self.task, Regression):
            y = torch.stack([x.flatten(1).mean(1), x.flatten(1).amax(1)], 1)
        return Dataset("tiny", x, y, self.task, self.shape, self.classes)


CNN = {"name": "cnn", "input": (1, 8, 8), "classes": 4}
RESNET = {"name": "resnet18", "input": (2, 8, 8), "classes": 4, "blocks": (1, 1)}
CONVNET = {"name": "convnet", "classes": 4, "pool": (1,)}
VGG = {"name": "vgg11", "input": (1, 32, 32), "classes": 4}
HEADS = {"width": 8, "heads": 3, "per_head": 2, "hidden": 8}
TEXT = NextToken(12, (0,))

FAMILIES: Mapping[str, Family] = {
    "cnn": Family({**CNN, "conv": (16, 16), "dense": (16,)}),
    "cnn-group": Family({**CNN, "conv": (8, 8), "norm": "group", "size": 2}),
    "cnn-none": Family({**CNN, "conv": (6, 8), "dense": (8,), "norm": "none", "tanh": True, "exits": True}),
    "convnet": Family({**CONVNET, "input": (1, 8, 8), "conv": (4, 6, 8), "pool": (1, 3), "flat": True}),
    "convnet-1d": Family({**CONVNET, "input": (3, 16), "conv": (8, 8), "norm": "group", "size": 2}, shape=(3, 16)),
    "vgg-cut": Family({**VGG, "scale": 1 / 16, "exits": True, "depth": 2}, shape=(1, 32, 32)),
    "resnet": Family({**RESNET, "widths": (6, 8)}, shape=(2, 8, 8)),
    "resnet-group": Family({**RESNET, "widths": (8, 8), "norm": "group", "size": 2}, shape=(2, 8, 8)),
    "lstm": Family({"name": "lstm", "vocabulary": 12, "embed": 6, "hidden": (8, 8)}, TEXT, (7,), 12),
    "lstm-tied": Family({"name": "lstm", "vocabulary": 12, "embed": 8, "hidden": (8, 8), "tied": True}, TEXT, (7,), 12),
    "transformer": Family({"name": "transformer", "vocabulary": 12, "length": 7, "blocks": 2, **HEADS}, TEXT, (7,), 12),
    "vit": Family({"name": "vit", "input": (1, 8, 8), "classes": 4, "patch": 4, "blocks": 1, **HEADS}),
    "mlp": Family({"name": "mlp", "inputs": 64, "hidden": (16, 16), "classes": 4}),
    "mlp-regression": Family({"name": "mlp", "inputs": 64, "hidden": (8,), "classes": 2}, Regression(), classes=2),
}

TIERS = (0.2, 0.4, 0.6, 0.8, 1.0)


def world(
    method: Method,
    family: str = "cnn",
    clients: int = 5,
    widths: Sequence[float] = TIERS,
    seed: int = 0,
    samples: int = 24,
    fleet: Fleet | None = None,
    memories: Memories | None = None,
    **more: Any,
) -> Simulator:
    """A simulator of ``clients`` with ``samples`` each: with batches of 4, at least three local steps."""
    kind, key = FAMILIES[family], Key(seed)
    data = kind.data(clients * samples, key.at("data"))
    shards = deal(data, clients, iid, key.at("deal"), (0.6, 0.2, 0.2))
    return of(method, kind, shards, key, widths, fleet, memories, **more)


def of(
    method: Method,
    kind: Family,
    shards: Shards,
    key: Key,
    widths: Sequence[float],
    fleet: Fleet | None = None,
    memories: Memories | None = None,
    model: Model | None = None,
    **more: Any,
) -> Simulator:
    """A simulator of given data, and of a given net, if it is not the family's."""
    able = method.exits and "exits" in signature(builder_of(str(kind.model["name"]))).parameters
    model = model or build({**kind.model, "exits": True} if able else kind.model, key.at("model"))
    sizes = {i: shards.counts(i)["train"] for i in shards.clients}
    fleet = fleet or tiers(sizes, widths, key.at("fleet"))
    engine = Serial(shards, Setup("serial", "contiguous", 1), strict=True)
    site = Here(method.local, model, kind.task, fleet, shards, engine, memories or InRam())
    return Simulator(method, model, fleet, key, site, **{"run": "tiny"} | more)


SMALL = {"fraction": 1.0, "epochs": 1, "batch": 4, "lr": 0.05, "steps": 3, "over": 1.0, "initial": 0}


def small(builder: Any, **given: Any) -> Method:
    """A method at the tests' size: everybody, one epoch, batches of 4."""
    from fedquilt.schema import settings

    known = settings(builder)
    method: Method = builder(**({k: v for k, v in SMALL.items() if k in known} | given))
    if method.schedule.keeps_late:  # a step of the server is then a round of all five
        method = replace(method, schedule=Buffered(5, 5))
    return method


def play(sim: Simulator, rounds: int, now: Now | None = None) -> tuple[Now, list[Round]]:
    """So many rounds, from the beginning or from ``now``."""
    now = now or sim.begin()
    told = []
    for _ in range(rounds):
        now, report = sim.round(now)
        told.append(report)
    return now, told


__all__ = ["FAMILIES", "SMALL", "TIERS", "Family", "of", "play", "replace", "small", "world"]
