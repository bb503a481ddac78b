"""From a run's settings to its end: everything is made and checked first, then the rounds go by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from .data.held import held
from .drive.pool import Pool
from .drive.rounds import Now, Rounds, packed, unpacked
from .history import HELD, KINDS, History, Result
from .prepare import ENGINES, Prepared, Processes, prepare
from .record import describe, resumed, same
from .run import Run, Watch, record_of
from .schema import BadSetting, chosen
from .store import InRam, Journal, OnDisk, RunFolder

HOT_BYTES = 256 << 20  # client memories kept in RAM beside the disk


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
                return _rounds(prepared, driver, describe(prepared), History(), None, driver.begin(), watch)
    prepared = prepare(run, OnDisk(out / "memory", HOT_BYTES, spare=1))
    record = describe(prepared)
    out.mkdir(parents=True, exist_ok=True)
    with RunFolder(out) as folder:
        begun = (out / "run.json").exists()
        if begun and not resume:
            raise BadSetting(f"{out} holds a run already: resume it, choose another folder, or remove it")
        notices = same(old := record_of(out), record, out) if begun else []
        record = resumed(old, record) if begun else record
        folder.write("run.json", json.dumps(record, indent=2))
        if not (out / HELD).exists():
            folder.write(HELD, "".join(json.dumps(row) + "\n" for row in held(prepared.data)))
        journals = {kind: Journal(out / f"{kind}.jsonl") for kind in KINDS}
        told = journals["rounds"].offset  # a state is stored before the first round
        found = folder.load(journals)
        if told and not found:
            notices.append(f"{out} tells of rounds but holds no state any more: the run begins anew")
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
        early = now.state.round == prepared.sim.method.stop.reached(now.state.notes.get("stop"))
        due = ended() or early or now.state.round == 0 or (run.eval_every and now.state.round % run.eval_every == 0)
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
        folder.write("result.json", json.dumps(result.figures(), indent=2))
    return result
