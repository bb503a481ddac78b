"""From a run's settings to its end: everything is made and checked first, then the rounds go by."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from . import __version__
from .data.held import held
from .drive.pool import Pool
from .drive.rounds import Now, Rounds, packed, unpacked
from .history import HELD, KINDS, History, Result
from .prepare import ENGINES, FREE, Prepared, Processes, prepare
from .run import Run, Watch
from .schema import BadSetting, chosen
from .store import InRam, Journal, OnDisk, RunFolder

HOT_BYTES = 256 << 20  # client memories kept in RAM beside the disk


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
            "unseen": sorted(prepared.data.unseen),
            "repeats": prepared.data.repeats,
            "files": dict(prepared.data.data.files),
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
        "commit": _commit(),
        "command": sys.argv,
    }


@cache
def _commit() -> dict[str, Any] | None:
    """Which commit of this project it is that runs, and whether its files differ; None if it is installed without."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    ask = ["git", "-C", str(root)]
    try:
        name = subprocess.run([*ask, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*ask, "status", "--porcelain", "--", "fedquilt"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"name": name, "changed": bool(changes.stdout)}


def _write(path: Path, text: str) -> None:
    half = path.with_suffix(".tmp")
    half.write_text(text)
    os.replace(half, path)


def _same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> list[str]:
    """Refuse to go on with another run; say what differs that may change bits."""
    if old["id"] != new["id"]:
        differ = [k for k in new["run"] if k not in FREE and old["run"].get(k) != new["run"][k]] or ["the data"]
        raise BadSetting(f"{folder} holds another run: {', '.join(differ)} differ from what is asked for")
    notices = []
    for part in ("versions", "machine", "engine"):
        for k, v in new[part].items():
            if old[part].get(k) != v:
                notices.append(f"{part}: {k} was {old[part].get(k)} and is {v}: bits may differ from here on")
    return notices


# ---- the clients
@contextmanager
def at_work(prepared: Prepared) -> Iterator[Rounds]:
    """The run's clients where its engine has them."""
    if isinstance(prepared.engine, Processes):
        workers = prepared.engine.workers or psutil.cpu_count(logical=False) or 1
        start = None if prepared.engine.start == "auto" else prepared.engine.start
        prepared.sim.site = Pool(prepared.here, workers, start)
    try:
        yield prepared.sim
    finally:
        prepared.sim.site.close()


World = Callable[[Prepared], AbstractContextManager[Rounds]]  # from a run made ready to what carries its orders


# ---- the rounds
def conduct(run: Run, out: Path | None, watch: Watch | None, resume: bool, world: World = at_work) -> Result:
    """Prepare, begin or go on, and end.  The clients are in a simulation, or in another ``world``."""
    if out is None:
        with TemporaryDirectory(prefix="fedquilt-") as scratch:
            ram = not isinstance(chosen(run.engine, ENGINES, "engine"), Processes)
            prepared = prepare(run, InRam() if ram else OnDisk(scratch, HOT_BYTES, durable=False))
            with world(prepared) as driver:
                return _rounds(prepared, driver, _record(prepared), History(), None, driver.begin(), watch)
    prepared = prepare(run, OnDisk(out / "memory", HOT_BYTES, spare=1))
    record = _record(prepared)
    out.mkdir(parents=True, exist_ok=True)
    with RunFolder(out) as folder:
        begun = (out / "run.json").exists()
        if begun and not resume:
            raise BadSetting(f"{out} holds a run already: resume it, choose another folder, or remove it")
        notices = _same(_record_of(out), record, out) if begun else []
        _write(out / "run.json", json.dumps(record, indent=2))
        if not (out / HELD).exists():
            _write(out / HELD, "".join(json.dumps(row) + "\n" for row in held(prepared.data)))
        journals = {kind: Journal(out / f"{kind}.jsonl") for kind in KINDS}
        found = folder.load(journals)
        history = History(**{k: j.records() for k, j in journals.items()}, journals=journals)
        for notice in (*notices, *folder.notices):
            if watch:
                watch({"notice": notice})
        with world(prepared) as driver:
            now = unpacked(found[1]) if found else driver.begin()
            return _rounds(prepared, driver, record, history, folder, now, watch)


def _rounds(
    prepared: Prepared,
    driver: Rounds,
    record: dict[str, Any],
    history: History,
    folder: RunFolder | None,
    now: Now,
    watch: Watch | None,
) -> Result:
    run = prepared.run
    splits = ("test",) if prepared.data.doubles else ("val", "test")

    def keep() -> None:
        if folder is not None:
            folder.save(now.state.round, packed(now), history.journals)

    def ended() -> bool:
        return now.state.round >= run.rounds or bool(now.state.stopped)

    def scored(records: Sequence[Mapping[str, Any]]) -> None:
        history.add("scores", *map(dict, records))
        if watch and records:
            watch({"round": records[0]["round"], "scored": history.at(records[0]["round"])})

    def judge() -> None:
        due = ended() or now.state.round == 0 or (run.eval_every and now.state.round % run.eval_every == 0)
        if due and now.state.round not in history.scored():
            scored(driver.judge(now.state, prepared.data.clients, splits, ended()))

    judge()  # of a run that goes on: scores that were to come with the replies of the round that was lost
    if now.state.round == 0:
        keep()
    while not ended():
        now, report = driver.round(now)
        history.add("rounds", report.record)
        history.add("clients", *report.clients)
        scored(report.scores)
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
