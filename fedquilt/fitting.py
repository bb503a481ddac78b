"""A method and its net fitted to a run's fleet, before any work: who can train what, and how long a round takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from .data.dataset import Dataset
from .fleet import Demand, Fleet
from .key import Key
from .meter.demand import demand
from .method import Method
from .model import Model
from .models import build
from .parts.local import Length
from .parts.reconfigure import Reconfigure, times_of
from .parts.schedule import Windows

Ask = Callable[[Model], Demand]


def fitted(method: Method, model: Model, fleet: Fleet, data: Dataset, key: Key) -> tuple[Method, Model]:
    """The method with a local, merge and schedule that know the fleet, and the server's net; most stay as they were.

    The fleet is that of the first round, by its profiles: what a device turns out to do is not known yet.
    Another net than the run's is drawn from ``key``.
    """
    train = trained(method)
    x, y = data.prepare(data.x[:2]), data.y[:2]
    batch, optim = getattr(train, "batch", 32), getattr(train, "optim", None)
    ask: Ask = cache(partial(demand, task=data.task, x=x, y=y, batch=batch, optim=optim))
    chosen = getattr(method.select, "among", None)
    able = fleet.only(chosen(fleet)) if chosen else fleet
    local, other = method.local.fitted(model, able, ask)
    model = model if other is model else build(other.spec, key)
    method = replace(method, local=local)
    if isinstance(method.merge, Reconfigure) and method.merge.timed:
        times = times_of(model, fleet, x, epochs_of(train))
        method = replace(method, merge=replace(method.merge, times=times))
    if isinstance(method.schedule, Windows) and not method.schedule.seconds:
        seconds = slowest(able, ask(model), epochs_of(train))
        method = replace(method, schedule=replace(method.schedule, seconds=seconds))
    return method, model


def trained(method: Method) -> Any:
    """What of a method's local says how it trains."""
    part: Any = method.local
    while hasattr(part, "train") or hasattr(part, "local"):
        part = getattr(part, "train", None) or part.local
    return part


def epochs_of(train: Any) -> int:
    """The most epochs of a training."""
    said = getattr(train, "epochs", 1)
    return said.most if isinstance(said, Length) else int(said)


def slowest(fleet: Fleet, wanted: Demand, epochs: int) -> float:
    """What the slowest device of a fleet takes for a round's training."""
    return max(wanted.seconds(d, fleet.sizes.get(i, 1), epochs) for i, d in fleet.devices.items())
