"""How fast a round is: this library, and others at the same numbers where they are installed, in turn.

    make bench                                 # in an environment of its own, with the peers; about 15 minutes
    python benchmarks/bench.py --minutes 60    # more rounds
    python benchmarks/bench.py W1 W2 --only fedquilt,loop,flower-tuned
    python benchmarks/bench.py W6-1000 --rounds 1 --only fedquilt --results FILE

Each contestant is a process of its own that has its data and its net ready.  All of them do round 0, which is not
timed: it says whether they compute the same (steps, samples, the loss after it).  Then each does a round in its turn,
so that a busy machine is busy for all.  What was measured is kept in `--out`: a second call does not repeat a workload
that was done with the same words, and `--again` does.  `--tell` only writes the results of what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from speed.field import work_of, write
from speed.result import Row, told
from speed.stage import Stage, installed
from speed.work import WORKS, Work

LEAST = 2  # timed rounds, whatever the budget


def contestants(work: Work, cores: int, only: list[str]) -> list[str]:
    """Who takes part: each method in one process and in as many as there are cores, and the peers that are there."""
    ours = [f"fedquilt:{m}:{n}" for m in work.methods for n in dict.fromkeys((0, cores))]
    there = [p for p in work.peers if installed(p)]
    return [c for c in [*ours, *there] if not only or c in only or c.partition(":")[0] in only]


def measure(work: Work, args: argparse.Namespace, seconds: float) -> None:
    """One workload, for about so long."""
    folder = Path(args.out) / work.name
    log = folder / "rounds.jsonl"
    rounds = args.rounds or work.rounds * max(1, round(args.minutes / 15))
    names = contestants(work_of(work.name, args.tiny), args.cores, args.only)
    folder.mkdir(parents=True, exist_ok=True)
    said = {"rounds": rounds, "tiny": args.tiny, "cores": args.cores, "contestants": names}
    facts = folder / "facts.json"
    if args.again or not facts.exists() or json.loads(facts.read_text()) != said:
        for path in (log, facts, folder / "done"):
            path.unlink(missing_ok=True)
    if (folder / "done").exists():
        print(f"{work.name}: measured before", flush=True)
        return
    log.write_text("")  # a contestant that begins anew trains from the first round on
    facts.write_text(json.dumps(said))
    (folder / "tiny").unlink(missing_ok=True)
    if args.tiny:
        (folder / "tiny").touch()
    write(work_of(work.name, args.tiny), rounds + 1, folder)
    began = time.monotonic()
    with Stage(folder, names, args.cores) as stage:

        def note(record: dict[str, Any]) -> None:
            with log.open("a") as out:
                out.write(json.dumps(record) + "\n")
            print(work.name, json.dumps(record), flush=True)

        def turn(words: str, n: int) -> None:
            for name in list(stage.there):
                note({"contestant": name, "kind": words.split()[0], "round": n, **stage.ask(name, words)})

        def score(n: int) -> None:
            if work.scored:
                turn("score", n)

        for name in names:
            note({"contestant": name, "kind": "start", **stage.start(name)})
        score(0)
        turn("round 0", 0)
        score(1)
        for n in range(1, rounds + 1):
            turn(f"round {n}", n)
            if n >= LEAST and time.monotonic() - began > seconds:
                break
        score(n + 1)
        for name in list(stage.there):
            note({"contestant": name, "kind": "memory", "bytes": stage.memory(name)})
    (folder / "done").touch()


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help=f"of {', '.join(w.name for w in WORKS)}; none: all")
    parser.add_argument("--minutes", type=float, default=15, help="about how long all of it may take")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds, instead of what the minutes allow")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=lambda s: s.split(","), default=[], help="contestants, by name")
    parser.add_argument("--out", default="runs/bench", help="where what was measured is kept")
    parser.add_argument("--results", default="benchmarks/RESULTS.md")
    parser.add_argument("--tiny", action="store_true", help="small enough for a test: of no use as a figure")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tell", action="store_true", help="measure nothing")
    args = parser.parse_args(words)
    known = {w.name: w for w in WORKS}
    if odd := [n for n in args.works if n not in known]:
        parser.error(f"no workload is called {odd[0]}; there are {', '.join(known)}")
    chosen = [known[n] for n in args.works] or list(WORKS)
    for work in () if args.tell else chosen:
        measure(work, args, 60 * args.minutes / len(chosen))
    rows = {w.name: Row.all(Path(args.out) / w.name) for w in WORKS if (Path(args.out) / w.name / "done").exists()}
    command = "python benchmarks/bench.py " + " ".join(a for a in (words or sys.argv[1:]) if a not in ("--tell",))
    Path(args.results).write_text(told(rows, command.strip()))
    print(f"written: {args.results}")
    if wrong := [f"{name} {r.contestant}: {r.differs}" for name, found in rows.items() for r in found if r.wrong]:
        raise SystemExit("these did not compute the same: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
