"""A run's settings made into things, and checked, before any work is done."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, cast

import torch

from . import models
from .data import shard, sources
from .data.drift import parse as parse_drift
from .data.partition import parse as parse_partition
from .data.shard import Shards, deal
from .data.sources import Dataset
from .drive.packing import CODES
from .drive.sim import Simulator
from .drive.site import Here
from .engine import Setup
from .engine.serial import Serial
from .fit import call
from .fitting import fitted
from .fleet import AVAILABILITY, STRAGGLERS, Fleet, muster
from .key import Key
from .method import Method
from .methods import build as build_method
from .model import Model
from .norm import norm as norm_policy
from .parts.schedule import SCHEDULES
from .parts.stop import STOPS
from .run import Run
from .schema import BadSetting, chosen, named, settings
from .schema import build as build_part
from .store import InRam, Memories
from .task import Classification, NextToken
from .types import Schedule, Stop

FREE = ("rounds", "engine", "data_dir")  # settings that may change when a run is resumed: it stays the same run


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run, ready to go, with its clients in this process."""

    run: Run
    sim: Simulator
    here: Here
    data: Shards
    setup: Setup
    engine: Serially | Processes


@dataclass(frozen=True)
class Serially:
    """One client after another, in this process."""


@dataclass(frozen=True)
class Processes:
    """Clients in ``workers`` processes at once (0: as many as there are cores); the same bits as serially."""

    workers: int = 0
    start: Literal["auto", "fork", "spawn"] = "auto"

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers is how many, or 0 for as many as there are cores, not {self.workers}")


ENGINES: Mapping[str, Callable[..., Serially | Processes]] = {"serial": Serially, "processes": Processes}


def prepare(run: Run, memories: Memories | None = None) -> Prepared:
    """Make and check all that the run is about, before any work."""
    torch.set_num_threads(1)  # from the first operation on: a process forked later then has no threads to miss
    key = Key(run.seed)
    engine: Serially | Processes = _asked("engine", chosen, run.engine, ENGINES, "engine")
    method = _method(run)
    run = resolved(run)
    shards = dealt(run)
    data = shards.data
    run = replace(run, partition=sharing(run, data))
    model = _model(run, data, key, method.exits)
    sizes = shards.sizes()
    fleet = fleet_of(run, sizes, key.at("fleet"))
    if getattr(method.select, "complete", False):
        fleet = replace(fleet, classes={i: len(shards.labels(i)) for i in sizes})
    now = fleet.without(shards.unseen).now(0, 0.0, key.at("fleet"))
    method, model = _asked("method", fitted, method, model, now, data, key.at("model"))
    _asked("norm", method.suits, model)
    setup = Setup.resolve(model, run.engine)
    name = _identity(run, shards.fingerprint)
    answering = Serial(shards, setup)
    here = Here(method.local, model, data.task, fleet, shards, answering, memories or InRam())
    sizes_at = shards.sizes if run.drift else None
    sim = Simulator(method, model, fleet, key, here, name, run.bound, shards.unseen, sizes_at)
    return Prepared(run, sim, here, shards, setup, engine)


def resolved(run: Run) -> Run:
    """The run with all settings of its method: defaults may change one day."""
    if isinstance(run.method, Method):
        return run
    return replace(run, method=dict(_named(run).spec))


def dealt(run: Run) -> Shards:
    """The data of a run, shared out among its clients."""
    data = run.data if isinstance(run.data, Dataset) else _asked("data", sources.load, run.data, run.data_dir)
    partition = _asked("partition", parse_partition, sharing(run, data))
    shares, drift = _asked("split", shard.parse, run.split), _asked("drift", parse_drift, run.drift)
    key = Key(run.seed).at("data")
    try:
        return deal(data, run.clients, partition, key, shares, drift, run.unseen)
    except ValueError as error:  # objections begin with what they are about
        about = str(error).split(maxsplit=1)[0].rstrip(",") if str(error) else ""
        mine = about == data.name or about in getattr(partition, "keywords", ()) or "goes by class" in str(error)
        raise BadSetting(str(error), "partition" if mine else "clients") from error


def sharing(run: Run, data: Dataset) -> str:
    """The partition of a run: what the data say, if the run does not."""
    return data.partition if run.partition == "auto" else run.partition


def _asked(setting: str, make: Callable[..., Any], *args: Any) -> Any:
    """What a function makes of a person's words; what it objects to is the person's to mend, in this setting."""
    try:
        return make(*args)
    except ValueError as error:
        raise BadSetting(str(error), setting) from error


def fleet_of(run: Run, sizes: Mapping[int, int], key: Key) -> Fleet:
    """The devices of a run whose clients have so much data."""
    fleet: Fleet = _asked("fleet", muster, run.fleet, sizes, key)
    fleet = replace(
        fleet,
        present=_asked("availability", chosen, run.availability, AVAILABILITY, "availability"),
        stragglers=_asked("stragglers", chosen, run.stragglers, STRAGGLERS, "stragglers"),
    )
    return cast(Fleet, _asked("dropout", partial(replace, fleet, dropout=run.dropout)))


def _named(run: Run) -> Method:
    if isinstance(run.method, Method):
        return run.method
    spec = {"name": run.method} if isinstance(run.method, str) else run.method
    return build_method(spec, (f.name for f in fields(Run)))


def _method(run: Run) -> Method:
    method = _named(run)
    if run.stop:
        stop: Stop = _asked("stop", chosen, run.stop, STOPS, "stop")
        method = replace(method, stop=stop)
    if run.schedule:
        name, given = _asked("schedule", named, run.schedule, SCHEDULES, "schedule")
        kept = {k: getattr(method.schedule, k) for k in settings(SCHEDULES[name]) if hasattr(method.schedule, k)}
        schedule: Schedule = _asked("schedule", build_part, SCHEDULES[name], kept | given, f"schedule {run.schedule!r}")
        method = replace(method, schedule=schedule)
    if run.norm:
        _asked("norm", norm_policy, run.norm)
        method = replace(method, norm=run.norm)
    return method


def _model(run: Run, data: Dataset, key: Key, exits: bool = False) -> Model:
    """The net, fitted to the data's shape and classes, and tried on two samples; where it can, with ``exits``."""
    if isinstance(run.model, Model):
        model = run.model
    else:
        text = _auto(data) if run.model == "auto" else run.model
        name, given = _asked("model", models.named, text)
        known = settings(models.builder_of(name))
        shape = {
            "input": data.shape,
            "inputs": math.prod(data.shape),
            "classes": data.classes,
            "vocabulary": data.classes,
        }
        if exits and "exits" in known:
            given = {"exits": True} | given
        given = {k: v for k, v in shape.items() if k in known} | given
        model = _asked("model", models.build, {"name": name, **given}, key.at("model"))
    try:
        with torch.no_grad():
            model.net.eval()
            out = call(model.net, model.params(), data.prepare(data.x[:2])).logits
            data.task.tally(out, data.y[:2])
            if isinstance(data.task, Classification) and out.shape[1] < data.classes:
                raise ValueError(f"it has {out.shape[1]} outputs")
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise BadSetting(
            f"the model {model.name} does not take the samples of {data.name}, which have shape {data.shape} "
            f"and {data.classes} classes: {reason}",
            "model",
        ) from error
    for name, t in model.params().items():
        if t.dtype not in CODES or not t.isfinite().all():
            why = f"is of {t.dtype}" if t.dtype not in CODES else "holds NaN or infinity"
            raise BadSetting(
                f"the model's tensor {name} {why}, so no message could carry it: give it another value, or register "
                "it as a buffer with persistent=False",
                "model",
            )
    return model


def _auto(data: Dataset) -> str:
    if data.model:
        return data.model
    if isinstance(data.task, NextToken):
        return "lstm"
    return "cnn:conv=16,32" if len(data.shape) == 3 else "mlp"


def _identity(run: Run, fingerprint: str) -> str:
    """A short name of the run: the same settings on the same data are the same run."""
    plain = {k: v for k, v in run.plain().items() if k not in FREE}
    return blake2b(json.dumps([plain, fingerprint], sort_keys=True).encode(), digest_size=8).hexdigest()
