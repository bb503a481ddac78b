"""What the measured pages share: runs that are kept and never repeated, a fair search, tables written into a page."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import fedquilt
from fedquilt.history import KINDS, History, Result
from fedquilt.method import Method
from fedquilt.run import Run, record_of, slug

RATES = (0.02, 0.05, 0.1)
BEGIN, END = "<!-- measured: {} -->", "<!-- end of {} -->"


def flags(doc: str | None, page: str) -> argparse.ArgumentParser:
    """The flags of every command that measures a page."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", default="runs/pages", help="where runs are kept; one that is there is not repeated")
    parser.add_argument("--page", default=f"docs/methods/{page}.md", help="the page that is written")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="instead of those of each part")
    return parser


def done(run: Run, folder: Path, watch: Callable[[Mapping[str, Any]], None] | None = None) -> Result:
    """The run's result: from its folder, or after the rounds that are missing there."""
    end = folder / "result.json"
    if not end.exists():
        return fedquilt.run(run, folder, watch, resume=True)
    figures = json.loads(end.read_text())
    lines = {k: (folder / f"{k}.jsonl").read_text().splitlines() for k in KINDS}
    history = History(**{k: [json.loads(line) for line in each] for k, each in lines.items()})
    return Result(record_of(folder), {}, figures["rounds"], figures["stopped"], history, folder)


def kept(run: Run, out: str | Path, name: str) -> Result:
    """The same, told in a line."""
    began = time.perf_counter()
    result = done(run, Path(out) / f"{name}-{slug(run)}")
    print(f"{name:40s} {result.rounds:4d} rounds  {time.perf_counter() - began:7.1f} s", flush=True)
    return result


def accuracy(result: Any, split: str = "test", round: int | None = None) -> float:
    """The unweighted mean over all clients of what they would use, after a round (None: the last that was scored)."""
    return float(result.history.at(round)[split]["mean"])


def searched(
    build: Callable[..., Method], settings: Mapping[str, Any], out: str | Path, name: str, rounds: int = 15
) -> float:
    """The learning rate that is best on validation data after some rounds; the same three for every method."""
    tried = {
        lr: accuracy(kept(Run(method=build(lr=lr), **{**settings, "rounds": rounds, "seed": 1000}), out, name), "val")
        for lr in RATES
    }
    return max(tried, key=lambda lr: tried[lr])


def spread(values: Iterable[float], scale: float = 100.0, digits: int = 1) -> str:
    """A mean and, of several, the standard deviation over seeds."""
    v = [scale * x for x in values]
    return f"{fmean(v):.{digits}f} ± {stdev(v):.{digits}f}" if len(v) > 1 else f"{fmean(v):.{digits}f}"


RULE = 2.0  # of how many standard deviations, over seeds, a difference is taken for one


def told(a: str, x: Sequence[float], b: str, y: Sequence[float], scale: float = 100.0, unit: str = "points") -> str:
    """What the figures of two say, seed by seed: which is better, or that they are not to be told apart."""
    d = [scale * (i - j) for i, j in zip(x, y, strict=True)]
    mean = fmean(d)
    if len(d) < 2:
        return f"{a} against {b}: {mean:+.1f} {unit} over one seed, too few for a verdict."
    around = stdev(d)
    if abs(mean) <= RULE * around or not mean:
        return f"{a} and {b} are not to be told apart ({mean:+.1f} ± {around:.1f} {unit} over {len(d)} seeds)."
    word = "better" if mean > 0 else "worse"
    return f"{a} is {word} than {b} by {abs(mean):.1f} ± {around:.1f} {unit} over {len(d)} seeds."


def verdicts(lines: Iterable[str]) -> str:
    """Sentences as a list in Markdown, under its word."""
    return "\n".join(("Verdict:", "", *(f"- {line}" for line in lines)))


# ---- what a run had come to when it had cost so much
def reached(result: Any, cost: str, budget: float) -> tuple[float, bool]:
    """The accuracy when so much had been spent, on the straight line between scorings; and whether the run lasted."""
    spent, total = [0.0], 0.0
    for r in result.history.rounds:
        total += r[cost]
        spent.append(total)
    points = [(spent[n], accuracy(result, round=n)) for n in result.history.scored()]
    for (before, low), (after, high) in pairwise(points):
        if budget < after:
            share = max(0.0, budget - before) / (after - before)
            return low + share * (high - low), True
    return points[-1][1], budget <= points[-1][0] * (1 + 1e-9)


def spent(result: Any, cost: str) -> float:
    """What the whole run has cost."""
    return float(sum(r[cost] for r in result.history.rounds))


def curves(runs: Mapping[str, Sequence[Any]], cost: str, scale: float, unit: str) -> str:
    """Accuracy against a cost: at the least that one of the runs has cost, and at shares and multiples of it."""
    least = min(spent(x, cost) for found in runs.values() for x in found)
    budgets = [least * 2.0**i for i in range(-2, 3)]
    rows = []
    for name, found in runs.items():
        row = []
        for b in budgets:
            each = [reached(x, cost, b) for x in found]
            text = spread(a for a, _ in each)
            row.append(text if all(lasted for _, lasted in each) else f"({text})")
        rows.append([name, *row])
    return table(["test accuracy %", *(f"at {scale * b:.3g} {unit}" for b in budgets)], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def written(page: str | Path, part: str, text: str) -> None:
    """Put a text between the page's marks of this part."""
    path, begin, end = Path(page), BEGIN.format(part), END.format(part)
    before, _, rest = path.read_text().partition(begin)
    if not rest:
        raise SystemExit(f"{page} has no place for {part}: it needs the lines {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}")
