"""From a run's settings to its end: everything is made and checked first, then the rounds go by."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from . import __version__, models
from .data import shard, sources
from .data.partition import parse as parse_partition
from .data.shard import Shards, deal
from .data.sources import Dataset
from .drive.score import score
from .drive.sim import Now, Simulator, packed, unpacked
from .engine import Setup
from .engine.serial import Serial
from .fit import call
from .fleet import tiers
from .history import KINDS, History, Result
from .key import Key
from .method import Method
from .methods import build as build_method
from .model import Model
from .norm import norm as norm_policy
from .parts.schedule import SCHEDULES
from .parts.stop import STOPS
from .run import Run, Watch
from .schema import BadSetting, chosen, named, settings
from .schema import build as build_part
from .store import Journal, OnDisk, RunFolder
from .task import NextToken
from .types import Schedule, Stop

HOT_BYTES = 256 << 20  # client memories kept in RAM beside the disk


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run, ready to go."""

    run: Run
    sim: Simulator
    data: Shards
    setup: Setup


def prepare(run: Run) -> Prepared:
    """Make and check all that the run is about, before any work."""
    key = Key(run.seed)
    method = _method(run)
    if not isinstance(run.method, Method) and method.spec:
        run = replace(run, method=dict(method.spec))  # with all its settings: defaults may change one day
    data = run.data if isinstance(run.data, Dataset) else _asked(sources.load, run.data)
    partition, shares = _asked(parse_partition, run.partition), _asked(shard.parse, run.split)
    shards = _asked(deal, data, run.clients, partition, key.at("data"), shares)
    model = _model(run, data, key)
    if run.engine != "serial":
        raise BadSetting(f"no engine is called {run.engine!r}; there is: serial")
    setup = Setup.resolve(model, run.engine)
    sizes = {i: shards.counts(i)["train"] for i in shards.clients}
    fleet = _asked(tiers, sizes, run.widths, key.at("fleet"))
    name = _identity(run, shards.fingerprint)
    engine = Serial(shards, setup)
    sim = Simulator(method, model, data.task, fleet, key, engine, shards, run=name, norm=run.bound)
    return Prepared(run, sim, shards, setup)


def _asked(make: Any, *args: Any) -> Any:
    """What a function makes of a person's words; what it objects to is the person's to mend."""
    try:
        return make(*args)
    except BadSetting:
        raise
    except ValueError as error:
        raise BadSetting(str(error)) from error


def _method(run: Run) -> Method:
    method = run.method
    if isinstance(method, str):
        method = {"name": method}
    if isinstance(method, Mapping):
        method = build_method(method, (f.name for f in fields(Run)))
    if run.stop:
        stop: Stop = chosen(run.stop, STOPS, "stop")
        method = replace(method, stop=stop)
    if run.schedule:
        name, given = named(run.schedule, SCHEDULES, "schedule")
        kept = {k: getattr(method.schedule, k) for k in settings(SCHEDULES[name]) if hasattr(method.schedule, k)}
        schedule: Schedule = build_part(SCHEDULES[name], kept | given, f"schedule {run.schedule!r}")
        method = replace(method, schedule=schedule)
    if run.norm:
        _asked(norm_policy, run.norm)
        method = replace(method, norm=run.norm)
    return method


def _model(run: Run, data: Dataset, key: Key) -> Model:
    """The net, fitted to the data's shape and classes, and tried on two samples."""
    if isinstance(run.model, Model):
        model = run.model
    else:
        text = _auto(data) if run.model == "auto" else run.model
        name, given = named(text, models.MODELS, "model")
        known = settings(models.MODELS[name])
        shape = {
            "input": data.shape,
            "inputs": math.prod(data.shape),
            "classes": data.classes,
            "vocabulary": data.classes,
        }
        given = {k: v for k, v in shape.items() if k in known} | given
        model = _asked(models.build, {"name": name, **given}, key.at("model"))
    try:
        with torch.no_grad():
            model.net.eval()
            out = call(model.net, model.params(), data.x[:2]).logits
            data.task.tally(out, data.y[:2])
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise BadSetting(
            f"the model {model.name} does not take the samples of {data.name}, which have shape {data.shape} "
            f"and {data.classes} classes: {reason}"
        ) from error
    return model


def _auto(data: Dataset) -> str:
    if isinstance(data.task, NextToken):
        return "lstm"
    return "cnn:conv=16,32" if len(data.shape) == 3 else "mlp"


def _identity(run: Run, fingerprint: str) -> str:
    """A short name of the run: the same settings on the same data are the same run."""
    plain = {k: v for k, v in run.plain().items() if k != "rounds"}
    return blake2b(json.dumps([plain, fingerprint], sort_keys=True).encode(), digest_size=8).hexdigest()


# ---- the run folder
def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the run that a folder holds."""
    return dict(_record_of(folder)["run"])


def _record_of(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise BadSetting(f"{folder} holds no run: there is no run.json in it") from None
    except ValueError as error:
        raise BadSetting(
            f"{path} is not readable as JSON ({error}); a run folder's run.json is not to be edited"
        ) from error


def _record(prepared: Prepared) -> dict[str, Any]:
    """What run.json says: enough to know what was done, and to do it again."""
    sim = prepared.sim
    return {
        "format": 1,
        "id": sim.run,
        "run": prepared.run.plain(),
        "method": repr(sim.method),
        "engine": dict(prepared.setup.record()),
        "data": {
            "name": prepared.data.data.name,
            "fingerprint": prepared.data.fingerprint,
            "clients": len(prepared.data),
            "test doubles as validation": prepared.data.doubles,
        },
        "model": {
            "name": sim.model.name,
            "parameters": sim.model.count(),
            "groups": sim.model.groups,
            "spec": {k: list(v) if isinstance(v, tuple) else v for k, v in sim.model.spec.items()},
        },
        "versions": {"fedquilt": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        },
        "command": sys.argv,
    }


def _write(path: Path, text: str) -> None:
    half = path.with_suffix(".tmp")
    half.write_text(text)
    os.replace(half, path)


def _same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> list[str]:
    """Refuse to go on with another run; say what differs that may change bits."""
    if old["id"] != new["id"]:
        differ = [k for k in new["run"] if k != "rounds" and old["run"].get(k) != new["run"][k]] or ["the data"]
        raise BadSetting(f"{folder} holds another run: {', '.join(differ)} differ from what is asked for")
    notices = []
    for part in ("versions", "machine", "engine"):
        for k, v in new[part].items():
            if old[part].get(k) != v:
                notices.append(f"{part}: {k} was {old[part].get(k)} and is {v}: bits may differ from here on")
    return notices


# ---- the rounds
def conduct(run: Run, out: Path | None, watch: Watch | None, resume: bool) -> Result:
    """Prepare, begin or go on, and end."""
    prepared = prepare(run)
    record = _record(prepared)
    if out is None:
        return _rounds(prepared, record, History(), None, prepared.sim.begin(), watch)
    out.mkdir(parents=True, exist_ok=True)
    with RunFolder(out) as folder:
        begun = (out / "run.json").exists()
        if begun and not resume:
            raise BadSetting(f"{out} holds a run already: resume it, choose another folder, or remove it")
        notices = _same(_record_of(out), record, out) if begun else []
        _write(out / "run.json", json.dumps(record, indent=2))
        journals = {kind: Journal(out / f"{kind}.jsonl") for kind in KINDS}
        found = folder.load(journals)
        history = History(**{k: j.records() for k, j in journals.items()}, journals=journals)
        now = unpacked(found[1]) if found else prepared.sim.begin()
        prepared.sim.memories = OnDisk(out / "memory", HOT_BYTES)
        for notice in (*notices, *folder.notices):
            if watch:
                watch({"notice": notice})
        return _rounds(prepared, record, history, folder, now, watch)


def _rounds(
    prepared: Prepared,
    record: dict[str, Any],
    history: History,
    folder: RunFolder | None,
    now: Now,
    watch: Watch | None,
) -> Result:
    run, sim = prepared.run, prepared.sim

    def keep() -> None:
        if folder is not None:
            folder.save(now.state.round, packed(now), history.journals)

    def judge() -> None:
        if now.state.round not in history.scored():
            splits = ("test",) if prepared.data.doubles else ("val", "test")
            history.add("scores", *score(sim, now.state, prepared.data.clients, splits))
            if watch:
                watch({"round": now.state.round, "scored": history.at(now.state.round)})

    if now.state.round == 0:
        judge()
        keep()
    while now.state.round < run.rounds and not now.state.stopped:
        now, report = sim.round(now)
        history.add("rounds", report.record)
        history.add("clients", *report.clients)
        last = now.state.round >= run.rounds or now.state.stopped
        if last or (run.eval_every and now.state.round % run.eval_every == 0):
            judge()
        keep()
        if watch:
            watch(report.record)
    result = Result(
        record, dict(now.state.params), now.state.round, now.state.stopped, history, folder.path if folder else None
    )
    if folder is not None:
        _write(folder.path / "result.json", json.dumps(result.figures(), indent=2))
    return result
