"""What the measured pages share: runs that are kept and never repeated, a fair search, tables written into a page."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import fedquilt
from fedquilt.method import Method
from fedquilt.run import Run, slug

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


def kept(run: Run, out: str | Path, name: str) -> fedquilt.history.Result:
    """The run's result: from its folder, or after the rounds that are missing there."""
    began = time.perf_counter()
    result = fedquilt.run(run, Path(out) / f"{name}-{slug(run)}", resume=True)
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
