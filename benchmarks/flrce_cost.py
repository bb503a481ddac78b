"""What FLrce's map costs: its part of a round, and a large fleet's map in RAM, in files and as sketches.

python benchmarks/flrce_cost.py       # a quarter of an hour and 8 GB; writes into docs/methods/flrce.md
python benchmarks/flrce_cost.py --clients 40 --params 1000 --cohort 4 --rounds 2 --share-rounds 2 --page copy.md
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pages
import torch
from speed.work import BY_NAME

from fedquilt.conduct import at_work
from fedquilt.cover import Cover
from fedquilt.fleet import tiers
from fedquilt.key import Key
from fedquilt.parts.relation import Related, importances
from fedquilt.parts.stop import Conflict
from fedquilt.prepare import prepare
from fedquilt.types import Grant, Order, Reply, State

KEY = Key(7)
SPENT = [0.0]  # seconds in FLrce's parts


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--params", type=int, default=1_000_000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5, help="timed, once everybody is on the map")
    parser.add_argument("--sketch", type=int, default=4096)
    parser.add_argument("--share-rounds", type=int, default=40, help="of the workload W1; the last ten are timed")
    parser.add_argument("--page", default="docs/methods/flrce.md")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    pages.written(args.page, "share", share(args.share_rounds))
    pages.written(args.page, "map", maps(args))


# ---- its part of a round
@contextmanager
def counted() -> Iterator[None]:
    began = time.perf_counter()
    yield
    SPENT[0] += time.perf_counter() - began


class Choosing(Related):
    """The selection, with a clock."""

    def __call__(self, *args: Any) -> list[int]:
        with counted():
            return super().__call__(*args)

    def learn(self, *args: Any) -> Any:
        with counted():
            return super().learn(*args)


class Stopping(Conflict):
    """The stop, with a clock."""

    def learn(self, *args: Any) -> Any:
        with counted():
            return super().learn(*args)


def share(rounds: int) -> str:
    """A round of W1 under FLrce, all of it and what FLrce's parts take of it."""
    run = BY_NAME["W1"].run("flrce", rounds=rounds)
    method, kept = run.method, ("explore", "warmup", "statistics")
    select = Choosing(**{f.name: getattr(method.select, f.name) for f in fields(Related)})
    stop = Stopping(record_only=True, **{k: getattr(method.stop, k) for k in kept})
    made = prepare(replace(run, method=replace(method, select=select, stop=stop)))
    whole, parts = [], []
    with at_work(made) as sim:
        now = sim.begin()
        for _ in range(rounds):
            SPENT[0], began = 0.0, time.perf_counter()
            now, _ = sim.round(now)
            whole.append(time.perf_counter() - began)
            parts.append(SPENT[0])
    known = len(now.state.notes["select"]["last"])
    size = sum(sim.model.params()[k].numel() for k in sim.model.trainable)
    part, rest = median(parts[-10:]), median(a - b for a, b in zip(whole[-10:], parts[-10:], strict=True))
    text = f"W1: {len(sim.fleet)} clients, {known} of them on the map, {size:,} numbers an update, one thread."
    row = [f"{1e3 * part:.1f}", f"{1e3 * rest:.1f}", f"{100 * part / rest:.1f} %"]
    return f"{text}\n\n" + pages.table(["FLrce's parts, ms a round", "the rest of the round, ms", "share"], [row])


# ---- a large map
def maps(args: Any) -> str:
    """The same updates through three maps, each in a process of its own."""
    rows, tables = [], {}
    with TemporaryDirectory(prefix="flrce-") as folder:
        modes = {"in RAM": {}, "in files": {"spill": folder}, f"sketches of {args.sketch}": {"sketch": args.sketch}}
        for name, given in modes.items():
            out = Path(folder) / f"{len(tables)}.json"
            child = multiprocessing.get_context("spawn").Process(target=one, args=(given, vars(args), str(out)))
            child.start()
            child.join()
            if child.exitcode:
                raise SystemExit(f"the map {name} ended with {child.exitcode}")
            told = json.loads(out.read_text())
            tables[name] = told
            first = tables["in RAM"]
            pairs = zip(told["rows"], first["rows"], strict=True)
            gap = [a - b for mine, true in pairs for a, b in zip(mine, true, strict=True)]
            same = len(set(told["top"]) & set(first["top"]))
            error = math.sqrt(sum(g * g for g in gap) / len(gap))
            figures = f"{told['seconds']:.2f}", f"{told['memory'] / 1e9:.2f}", f"{error:.4f}"
            rows.append([name, *figures, f"{same} of {args.cohort}"])
    text = f"{args.clients:,} clients, {args.params:,} numbers an update, {args.cohort} a round, one thread."
    head = [
        "map",
        "seconds a round",
        "GB of RAM at most",
        "RMS error of Ω",
        "the same clients of largest H",
    ]
    return f"{text}\n\n" + pages.table(head, rows)


def one(given: dict[str, Any], args: dict[str, Any], out: str) -> None:
    """Everybody once, in rounds; then the timed rounds, whose rows are told."""
    torch.set_num_threads(1)
    part, n, cohort = Related(**given), args["clients"], args["cohort"]
    fleet = tiers(dict.fromkeys(range(n), 1), (1.0,), Key(0))
    common = torch.randn(args["params"], generator=KEY.at("common").torch())
    w, note, seconds, rounds = torch.zeros(args["params"]), None, [], -(-n // cohort)
    chosen: list[int] = []
    with watched() as memory:
        for t in range(rounds + args["rounds"]):
            first = t * cohort % n
            chosen = sorted({(first + i) % n for i in range(cohort)})
            replies = [reply(i, t, w, common) for i in chosen]
            began = time.perf_counter()
            note = part.learn(note, State(t, {"w": w}), replies, fleet)
            seconds.append(time.perf_counter() - began)
            w = torch.stack([r.params["w"] for r in replies]).mean(0)
    assert note is not None
    h = importances(note)
    top = sorted(h, key=lambda i: -h[i])[:cohort]
    rows = [note["rows"][i]["value"].tolist() for i in chosen]
    told = {"seconds": median(seconds[rounds:]), "memory": max(memory), "top": top, "rows": rows}
    Path(out).write_text(json.dumps(told))


def reply(client: int, round: int, w: torch.Tensor, common: torch.Tensor) -> Reply:
    """An update that is partly everybody's, more so of some clients."""
    own = torch.randn(len(w), generator=KEY.at(client, round).torch())
    moved = 0.01 * (KEY.at(client).uniform() * common + own)
    cover = Cover.whole({"w": w})
    order = Order("", 0, client, round, {"w": w}, cover, Grant(cover))
    return Reply(client, round, {"w": w + moved}, cover, 1.0, order=order)


@contextmanager
def watched() -> Iterator[list[int]]:
    """The process's own memory every fiftieth of a second; pages of files, which it can do without, are not counted."""
    seen: list[int] = []
    over = Event()

    def look() -> None:
        while not seen or not over.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            seen.append(1024 * sum(int(x.split()[1]) for x in lines if x.startswith("RssAnon")))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
