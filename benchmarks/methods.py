"""The measured line of each method's page, on femnist (three seeds) and cifar10 (one): writes docs/methods/*.md.

python benchmarks/methods.py                        # all methods; hours; goes on where it was interrupted
python benchmarks/methods.py oort cs --data femnist
python benchmarks/methods.py --core-seconds 1 --search-rounds 1 --rounds 2 --seeds 1 --pages copy-of-the-pages

A run has at most so many core-seconds: how many rounds these are is told by the search, three learning rates on
validation data, of which the best is taken. `local` and fine-tuned fedavg are measured in the same way, first.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pages

from fedquilt.history import Result
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.prepare import dealt
from fedquilt.run import Run, slug
from fedquilt.stats import paired
from fedquilt.store import files
from fedquilt.types import Handle

SEEDS = {"femnist": 3, "cifar10": 1}
TUNED = "fine-tuned fedavg"
SEARCH_SEED = 1000
PART = "methods"


def main(words: Sequence[str] | None = None) -> None:
    args = flags().parse_args(words)
    names = args.methods or [m for m in METHODS if m != "local"]
    for name in [n for n in names if n not in METHODS]:
        raise SystemExit(f"no method is called {name!r}; there are: {', '.join(METHODS)}")
    sets, told = args.data.split(","), {name: {} for name in names}
    with ProcessPoolExecutor(args.jobs) as pool:
        first = {(d, label): pool.submit(measured, label, d, args) for d in sets for label in ("local", TUNED)}
        beside = {d: {label: f.result() for (e, label), f in first.items() if e == d} for d in sets}
        lines = {pool.submit(measured, name, d, args, beside[d]): (name, d) for name in names for d in sets}
        for line in as_completed(lines):
            name, data = lines[line]
            told[name][data] = line.result()
            page(args.pages, name, {d: told[name][d] for d in sets if d in told[name]})
    hours = sum(json.loads(p.read_text()) for p in Path(args.out).glob("*/core_seconds.json")) / 3600
    print(f"{hours:.2f} core-hours for all runs in {args.out}")
    summary(args.pages, told, hours)


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="which (all)")
    parser.add_argument("--data", default=",".join(SEEDS))
    parser.add_argument("--core-seconds", type=float, default=90.0, help="of one run")
    parser.add_argument("--search-rounds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300, help="at most; the budget ends most runs earlier")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="methods at once, each on one core")
    parser.add_argument("--seeds", type=int, default=0, help="instead of three on femnist and one on cifar10")
    parser.add_argument("--margin", type=float, default=5.0, help="points above the majority class for a line to count")
    parser.add_argument("--out", default="runs/methods", help="where runs are kept; one that is there is not repeated")
    parser.add_argument("--pages", default="docs/methods")
    return parser


# ---- runs
def timed(run: Run, out: str, name: str) -> tuple[Result, float]:
    """The run's result, and its core-seconds, those before an interruption included."""
    folder = Path(out) / f"{name}-{slug(run)}"
    ledger = folder / "core_seconds.json"
    spent = json.loads(ledger.read_text()) if ledger.exists() else 0.0
    began = time.process_time()

    def watch(record: Mapping[str, Any]) -> None:
        files.replace(ledger, json.dumps(spent + time.process_time() - began).encode())

    result = pages.done(run, folder, watch)
    seconds = json.loads(ledger.read_text())
    print(f"{name:36s} {result.rounds:4d} rounds  {seconds:8.1f} core-seconds", flush=True)
    return result, seconds


@dataclass(frozen=True)
class Line:
    """What a page says of a method on one data set."""

    text: str
    mean: float
    values: Mapping[tuple[int, int], float]


def measured(label: str, data: str, args: Any, beside: Mapping[str, Line] | None = None) -> Line:
    """Search, then run each seed within the budget."""
    name, given = ("fedavg", {"finetune": 5}) if label == TUNED else (label, {})
    what, setting = label.replace(" ", "-"), {"data": data, "clients": args.clients, "eval_every": 0}
    trials = {}
    for lr in pages.RATES:
        method = {"name": name, "lr": lr, **given}
        run = Run(method=method, seed=SEARCH_SEED, rounds=args.search_rounds, **setting)
        result, seconds = timed(run, args.out, f"search-{what}-{data}")
        trials[lr] = (pages.accuracy(result, "val"), seconds)
    lr = max(trials, key=lambda v: trials[v][0])
    a_round = max(s for _, s in trials.values()) / args.search_rounds
    rounds = max(1, min(args.rounds, int(args.core_seconds / a_round)))
    method = {"name": name, "lr": lr, **given}
    seeds = range(args.seeds or SEEDS.get(data, 1))
    runs = [Run(method=method, seed=s, rounds=rounds, **setting) for s in seeds]
    results = [timed(r, args.out, f"{what}-{data}")[0] for r in runs]
    values = {(s, c["client"]): c["accuracy"] for s, r in zip(seeds, results, strict=True) for c in served(r)}
    common = fmean(majority(r) for r in runs)
    each = [pages.accuracy(r) for r in results]
    whole = [w for r in results if (w := r.history.at()["test"]["global"]) is not None]
    text = sentence(data, rounds, lr, each, whole, values, common, beside or {}, args)
    return Line(text, fmean(each), values)


def served(result: Any) -> list[dict[str, Any]]:
    """Each client's last score of what it would use, on its own test data."""
    rows = [r for r in result.history.scores if r["model"] == "served" and r["split"] == "test"]
    return [r for r in rows if r["round"] == result.rounds]


def majority(run: Run) -> float:
    """The mean accuracy of always saying the commonest class of one's own training data."""
    shards, out = dealt(run), []
    for i in shards.clients:
        (_, train), (_, test) = shards[Handle(i, "train")], shards[Handle(i, "test")]
        out.append(float((test == train.mode().values).double().mean()))
    return fmean(out)


# ---- words
def sentence(
    data: str,
    rounds: int,
    lr: float,
    each: Sequence[float],
    whole: Sequence[float],
    values: Mapping[tuple[int, int], float],
    common: float,
    beside: Mapping[str, Line],
    args: Any,
) -> str:
    seeds = f"{len(each)} seeds" if len(each) > 1 else "one seed"
    tried = ", ".join(map(str, pages.RATES))
    said = [
        f"**{data}**, {args.clients} clients, {rounds} rounds (within {args.core_seconds:g} core-seconds), {seeds}: "
        f"{pages.spread(each)} % (standard deviation over clients {100 * pstdev(values.values()):.1f}); "
        f"learning rate {lr:g}, the best of {tried} on validation data after {args.search_rounds} rounds."
    ]
    if whole:
        said.append(f"The global model on everybody's test data together: {pages.spread(whole)} %.")
    if beside:
        others = ", ".join(f"{label} {100 * line.mean:.1f} %" for label, line in beside.items())
        said.append(f"Beside it: {others}, the commonest class {100 * common:.1f} %.")
        if all(100 * (line.mean - common) >= args.margin for line in beside.values()):
            said += [verdict(values, label, line, data) for label, line in beside.items()]
        else:
            said.append(
                f"**Does not count**: `local` and fine-tuned fedavg are not both {args.margin:g} points above the "
                "commonest class."
            )
    return " ".join(said)


def verdict(values: Mapping[tuple[int, int], float], label: str, other: Line, data: str) -> str:
    """Is it better, over the clients of all seeds?"""
    found = paired(values, other.values, Key(0).at(data, label))
    low, high = (100 * v for v in found["interval"])
    word = "Better than" if low > 0 else "Worse than" if high < 0 else "Not to be told from"
    return f"{word} {label}: {100 * found['difference']:+.1f} points, 95 % of {low:+.1f} to {high:+.1f}."


SECTION = """
## Measured

    python benchmarks/methods.py {name}

Accuracy: unweighted mean over all clients of the model that each would use, on its own test data, after the last round,
± standard deviation over seeds. Differences are paired over clients; intervals are of the bootstrap.

{begin}
{end}
"""


def page(folder: str, name: str, told: Mapping[str, Line]) -> None:
    """Write what is known into the method's page; a page that has no place for it is given one at its end."""
    path = Path(folder) / f"{name}.md"
    begin, end = pages.BEGIN.format(PART), pages.END.format(PART)
    if begin not in path.read_text():
        path.write_text(path.read_text().rstrip() + "\n" + SECTION.format(name=name, begin=begin, end=end))
    pages.written(path, PART, "\n\n".join(line.text for line in told.values()))


def summary(folder: str, told: Mapping[str, Mapping[str, Line]], hours: float) -> None:
    """All of them in one table."""
    data = list(dict.fromkeys(d for lines in told.values() for d in lines))
    rows = [
        [f"[{name}]({name}.md)", *(f"{100 * lines[d].mean:.1f}" if d in lines else "" for d in data)]
        for name, lines in told.items()
    ]
    text = pages.table(["method", *(f"{d}, %" for d in data)], rows)
    pages.written(Path(folder) / "README.md", PART, f"{text}\n\n{hours:.1f} core-hours, searches included.")


if __name__ == "__main__":
    main()
