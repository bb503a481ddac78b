"""``run``, ``resume``, ``compare`` and ``tune``: what the words ask for, done in a folder and watched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..compare import Comparison, Watch, check, compare, finished, places_of, study_of
from ..conduct import conduct
from ..file import placed, read
from ..log import Trackings, checked, tracked
from ..prepare import prepare, resolved
from ..report import report
from ..run import Run, settings_of, slug
from ..schema import BadSetting
from ..store import StoreError
from ..store.lock import Lock
from ..study import Entry, Study
from ..tune import search_of, tune, tuned
from .live import Bars, Live, Many, notice
from .tables import print_json, print_run, table_of_runs, title
from .verdict import print_comparison, print_search

KEPT = "runs"  # where runs go that are not told where

# What is run if nothing is asked for: small enough for a minute, large enough to see a difference.
FIRST: Mapping[str, Any] = {
    "methods": ["local", "fedavg", {"name": "fedavg", "finetune": 2}, "fedspu", "heterofl"],
    "partition": "dirichlet:0.2",
    "rounds": 20,
    "eval_every": 5,
    "fraction": 0.5,
    "epochs": 2,
    "batch": 16,
}


@dataclass(frozen=True)
class How:
    """How a command is to work and to speak; without ``jobs``, one run at a time."""

    out: Path | None = None
    force: bool = False
    json: bool = False
    quiet: bool = False
    dry: bool = False
    jobs: int | None = None
    track: Sequence[str] = ()

    def __post_init__(self) -> None:
        checked(self.track)
        if self.jobs is not None and self.jobs < 1:
            raise BadSetting(f"--jobs is at least 1, not {self.jobs}", "jobs")

    @property
    def silent(self) -> bool:
        """No progress."""
        return self.quiet or self.json


def asked(words: Sequence[str], said: Mapping[str, Any], beside: bool) -> tuple[Study, AbstractContextManager[None]]:
    """The study that words and flags ask for, and what says where in its file a fault is."""
    files = [w for w in words if w.endswith(".toml")]
    if files and len(words) > 1:
        raise BadSetting(f"a study file stands alone, not with {' '.join(w for w in words if w not in files)}")
    if files:
        return read(Path(files[0]), said, beside), placed(Path(files[0]), said)
    methods: dict[str, Any] = {"method": words[0]} if len(words) == 1 else {"methods": list(words)}
    return Study.of({**(methods if words else FIRST), **said}, beside), nullcontext()


# ---- one run
def do_run(words: Sequence[str], said: Mapping[str, Any], how: How) -> int:
    """Run what the command line says; the same again goes on, or shows what is finished."""
    study, place = asked(words, said, beside=False)
    entries = study.entries()
    if len(entries) > 1:
        mine = how if words else replace(how, jobs=how.jobs or min(2, os.cpu_count() or 1))
        return do_comparison(study, place, mine)
    with place:
        run = resolved(entries[0].run)
        if how.dry or not (how.out and (how.out / "run.json").exists()):
            prepare(run)
    folder = how.out or Path(KEPT) / slug(run)
    if how.dry:
        return tell(study, [folder], how)
    if how.force:
        clear(folder)
    return watched(run, folder, how)


def watched(run: Run, folder: Path, how: How) -> int:
    """Do the run or what is left of it, with progress, and say what came of it."""
    with Bars(how.silent) as bars, tracked(how.track, folder, notice) as tracker:
        live = Live(title(run.plain()), run.rounds, bars, tracker)
        try:
            result = conduct(run, folder, live, resume=True)
        except KeyboardInterrupt:
            to_do = f"go on with: fedquilt resume {folder}" if (folder / "run.json").exists() else "nothing was begun"
            raise KeyboardInterrupt(f"stopped after round {live.seen.round} of {run.rounds}; {to_do}") from None
        except StoreError as error:
            raise BadSetting(str(error)) from error
    page = report([folder]).page
    if how.json:
        print_json({"folder": str(folder), "settings": result.record["run"], **result.figures()})
    elif not how.quiet:
        if not live.seen.worked:
            notice(f"{folder} holds this run, finished: it is shown; --force does it anew")
        print_run(result.record, result.figures())
        print(f"  kept in {folder}\n  report: {page}")
    return 0


# ---- many runs
def do_compare(words: Sequence[str], said: Mapping[str, Any], how: How, beside: bool, search: Path | None) -> int:
    """Set methods beside each other."""
    study, place = asked(words, said, beside)
    return do_comparison(tuned(study, search) if search else study, place, how)


def do_comparison(study: Study, place: AbstractContextManager[None], how: How) -> int:
    """Do the runs of a study and say how its methods compare."""
    folder = how.out or Path(KEPT) / f"compare-{study.digest}"
    entries, places = places_of(study, folder)
    if how.dry:
        with place:
            check(study)
        return tell(study, places, how)
    if how.force:
        clear(folder)
    with Bars(how.silent) as bars, told(how, entries, places) as tell_all:
        try:
            with place:
                done = compare(study, folder, how.jobs or 1, Many("comparison", bars, tell_all))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_stopped(places, folder, "comparison.json")) from None
        except StoreError as error:
            raise BadSetting(str(error)) from error
    page = report([folder]).page if any(cell["rows"] for cell in done.record["cells"]) else None
    if how.json:
        print_json({"folder": str(folder), **done.record})
    elif not how.quiet:
        print_comparison(done.record)
        print(f"  kept in {folder}")
        if page:
            print(f"  report: {page}")
    return _faults(done)


@contextmanager
def told(how: How, entries: Sequence[Entry], places: Sequence[Path]) -> Iterator[Watch]:
    """What tells the trackers of the runs of a comparison."""
    cells = {(e.label, e.data, e.partition, e.seed): p for e, p in zip(entries, places, strict=True)}
    trackings = Trackings(how.track, cells, notice)

    def watch(entry: Entry | None, record: Mapping[str, Any]) -> None:
        if entry is not None:
            trackings((entry.label, entry.data, entry.partition, entry.seed), record)

    try:
        yield watch
    finally:
        trackings.close()


def _faults(done: Comparison) -> int:
    if not done.failed:
        return 0
    place, reason = next(iter(done.failed.items()))
    raise RuntimeError(
        f"{len(done.failed)} of {len(done.record['runs'])} runs failed, the first in {done.folder / place}: {reason}; "
        f"once that is mended, go on with: fedquilt resume {done.folder}"
    )


def _stopped(places: Sequence[Path], folder: Path, mark: str) -> str:
    n = sum(map(finished, set(places)))
    to_do = f"go on with: fedquilt resume {folder}" if (folder / mark).exists() else "nothing was begun"
    return f"stopped with {n} of {len(set(places))} runs finished; {to_do}"


def do_tune(
    words: Sequence[str], said: Mapping[str, Any], how: How, beside: bool, over: Mapping[str, Any], on_test: bool
) -> int:
    """Search settings."""
    study, place = asked(words, said, beside)
    return do_search(study, over, on_test, place, how)


def space(words: Sequence[str]) -> dict[str, str]:
    """The values to try of each setting, from words such as ``lr=0.01,0.1``."""
    out: dict[str, str] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or name in out:
            raise BadSetting(
                f"--over is a setting and its values, such as lr=0.01,0.1, each once, not {word!r}", "over"
            )
        out[name.replace("-", "_")] = values
    return out


def do_search(
    study: Study, over: Mapping[str, Any], on_test: bool, place: AbstractContextManager[None], how: How
) -> int:
    """Do the trials of a search and say what was chosen."""
    folder = how.out or Path(KEPT) / f"tune-{study.digest}"
    if how.force:
        clear(folder)
    with Bars(how.silent) as bars:
        try:
            with place:
                record = tune(study, over, folder, how.jobs or 1, Many("search", bars), on_test)
        except KeyboardInterrupt:
            begun = (folder / "tune.json").exists()
            to_do = f"go on with: fedquilt resume {folder}" if begun else "nothing was begun"
            raise KeyboardInterrupt(f"stopped; {to_do}") from None
        except StoreError as error:
            raise BadSetting(str(error)) from error
    page = report([folder]).page if any(record["chosen"].values()) else None
    if how.json:
        print_json({"folder": str(folder), **record})
    elif not how.quiet:
        print_search(record)
        print(f"  kept in {folder}; use it with: fedquilt compare ... --tuned {folder}")
        if page:
            print(f"  report: {page}")
    bad = [t["failed"] for t in record["trials"] if "failed" in t]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(record['trials'])} trials failed, the first: {bad[0]}")
    return 0


# ---- again
def do_resume(folder: Path, how: How) -> int:
    """Go on with whatever a folder holds."""
    mine = replace(how, out=folder)
    if (folder / "comparison.json").exists():
        return do_comparison(study_of(folder), nullcontext(), mine)
    if (folder / "tune.json").exists():
        study, over, on_test = search_of(folder)
        return do_search(study, over, on_test, nullcontext(), mine)
    return watched(Run.of(settings_of(folder), f"the run in {folder}"), folder, mine)


def tell(study: Study, places: Sequence[Path], how: How) -> int:
    """What would be done."""
    entries = study.entries()
    runs = [
        {"label": e.label, "data": e.data, "partition": e.partition, "seed": e.seed, "folder": str(p)}
        | {"finished": finished(p), "settings": resolved(e.run).plain()}
        for e, p in zip(entries, places, strict=True)
    ]
    if how.json:
        print_json(runs)
    else:
        table_of_runs(runs)
    return 0


MARKS = ("run.json", "comparison.json", "tune.json")


def clear(folder: Path) -> None:
    """Remove a run's folder, if it is one and nobody is at work in it."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not any((folder / mark).is_file() for mark in MARKS):
        raise BadSetting(f"{folder} holds no run, so --force does not remove it; choose another folder")
    if Path.cwd().resolve().is_relative_to(folder.resolve()):
        raise BadSetting(f"{folder} is where you are, so --force does not remove it; choose another folder")
    try:
        lock = Lock(folder / "run.lock")
    except StoreError as error:
        raise BadSetting(str(error)) from error
    shutil.rmtree(folder)
    lock.release()
