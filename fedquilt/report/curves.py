"""How good against what it cost: curves, efficiency, the cost of a target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from ..history import Record
from .chart import Axis, Chart, Dot, Dots, Figure, Line, Lines
from .draw import thinned
from .sums import COSTS, MEASURES, SPLITS, Curve, Sums, common, over, picked
from .table import Column, Table, Value

MOST_ROWS = 60  # of a table, for each method
STEPS = 20  # targets between nothing and everything
SCORED = "after each scored round, with no further training but what serving takes"
COST_COLUMNS = [Column(name, axis.kind) for name, axis in COSTS.items()]


def curves(s: Sums) -> Figure:
    """The measure against rounds and costs; a band is the range over seeds, or of the clients of a single run."""
    single = len(s.section.all) == 1
    views: dict[tuple[str, str], Chart] = {}
    for y, key in MEASURES.items():
        drawn = {x: [line for i, n in enumerate(s.names) if (line := _line(s, i, n, x, key, single))] for x in COSTS}
        for x, axis in COSTS.items():
            if drawn[x]:
                views[x, y] = Lines(axis, Axis(f"{s.metric}, {_of(y)}", s.measure.kind), drawn[x])
    seeds = max(map(len, s.section.runs.values()))
    note = "Costs are sums since the beginning. "
    if seeds > 1:
        note += f"Lines: mean over up to {seeds} seeds, at rounds that all of them have scored; bands: their range. "
    elif single:
        note += "Band: from the tenth to the ninetieth percentile of the clients. "
    model = "served: the one that a client would use now"
    if any(y == "global model" for _, y in views):
        model += f"; under 'global model' the server's own, on the {SPLITS[s.split]} parts of all clients together"
    caption = s.caption(note.strip(), moment=SCORED, pick="none: every scored round is shown", model=model)
    return Figure("curves", f"{s.metric.capitalize()} against cost", caption, views, _curve_table(s), s.names)


def _of(measure: str) -> str:
    return {"mean": "mean over clients", "worst tenth": "worst tenth of clients"}.get(measure, "global model")


def _line(s: Sums, i: int, name: str, x: str, key: str, single: bool) -> Line | None:
    by_seed = s.curves[name]
    rounds = common(by_seed)
    each = [picked(c, rounds, [v[key] for v in c.scores]) for c in by_seed.values()]
    if not rounds or any(v is None for values in each for v in values):
        return None
    xs = [fmean(v) for v in zip(*(picked(c, rounds, c.costs[x]) for c in by_seed.values()), strict=True)]
    ys = [fmean(v) for v in zip(*each, strict=True)]
    if single and key == "mean":
        told = s.section.all[0]
        spread = [sorted(_clients(told.scored[r], s.split, s.metric)) for r in rounds]
        return Line(i, xs, ys, [_share(v, 0.1) for v in spread], [_share(v, 0.9) for v in spread])
    if len(each) == 1:
        return Line(i, xs, ys)
    return Line(i, xs, ys, [min(v) for v in zip(*each, strict=True)], [max(v) for v in zip(*each, strict=True)])


def _clients(records: Sequence[Record], split: str, metric: str) -> Iterator[float]:
    for r in records:
        if r["model"] == "served" and r["split"] == split and "population" not in r:
            yield r[metric]


def _share(ordered: list[float], q: float) -> float:
    return ordered[round(q * (len(ordered) - 1))]


def _curve_table(s: Sums) -> Table:
    kind = s.measure.kind
    columns = [Column("method"), Column("seeds", "count"), *COST_COLUMNS, Column("mean", kind), Column("spread", kind)]
    rows: list[list[Value]] = []
    cut = False
    for name, by_seed in s.curves.items():
        rounds = common(by_seed)
        cut = cut or len(rounds) > MOST_ROWS
        for r in thinned(rounds, MOST_ROWS):
            at = [(c, c.rounds.index(r)) for c in by_seed.values()]
            spent = [fmean(c.costs[x][i] for c, i in at) for x in COSTS]
            found = [over([c.scores[i][k] for c, i in at]) for k in ("mean", "spread", "worst_decile", "global")]
            rows.append([name, len(at), *spent, *found])
    note = f"At most {MOST_ROWS} rounds of each method; scores.jsonl in each run's folder has all." if cut else ""
    return Table([*columns, Column("worst tenth", kind), Column("global model", kind)], rows, note)


def losses(s: Sums) -> Figure | None:
    """What training minimises, as the clients report it."""
    lines = []
    rows: list[list[Value]] = []
    for i, (name, by_seed) in enumerate(s.section.runs.items()):
        first = next(iter(by_seed.values()))
        pairs = [(float(r["round"]), r["loss"]) for r in first.history.rounds if r["loss"] is not None]
        if pairs:
            lines.append(Line(i, *map(list, zip(*pairs, strict=True))))  # type: ignore[arg-type]
            rows += [[name, x, y] for x, y in thinned(pairs, MOST_ROWS)]
    if not lines:
        return None
    seed = next(iter(next(iter(s.section.runs.values()))))
    caption = s.caption(
        f"Seed {seed}. A method's loss may have terms that another's has not: compare shapes, not heights.",
        population="the clients whose replies were accepted, by number of samples",
        model="the one in training",
        moment="during local training, mean over its steps",
        split="training",
        pick="none: every round is shown",
    )
    views: dict[tuple[str, str], Chart] = {
        ("rounds", "loss"): Lines(COSTS["rounds"], Axis("training loss", "rate"), lines)
    }
    table = Table([Column("method"), Column("round", "count"), Column("loss", "rate")], rows)
    return Figure("loss", "Training loss", caption, views, table, s.names)


def efficiency(s: Sums) -> Figure | None:
    """The measure that is reached for each joule and each byte."""
    if s.lower:
        return None
    kinds = {
        "per joule": ("joules", 1.0, "J"),
        "per megabyte": ("bytes", 1e6, "MB"),
        "per TFLOP": ("FLOPs", 1e12, "TFLOP"),
    }
    rows: list[list[Value]] = []
    views: dict[tuple[str, str], Chart] = {}
    for said, (cost, unit, word) in kinds.items():
        dots = []
        for i, name in enumerate(s.names):
            each = [
                c.scores[-1]["mean"] * unit / c.costs[cost][-1] for c in s.curves[name].values() if c.costs[cost][-1]
            ]
            if each:
                within = (min(each), max(each)) if len(each) > 1 else (None, None)
                dots.append(Dot(i, i, fmean(each), *within))
        if dots:
            views["", said] = Dots(Axis(f"{s.metric} for each {word} spent", "rate", log=True), s.names, dots)
    if not views:
        return None
    for name in s.names:
        ends = [(c.scores[-1]["mean"], c) for c in s.curves[name].values() if c.costs["joules"][-1]]
        per = [over([m * unit / c.costs[k][-1] for m, c in ends if c.costs[k][-1]]) for k, unit, _ in kinds.values()]
        rows.append([name, over([m for m, _ in ends]), *per])
    caption = s.caption(
        f"The last mean {s.metric} divided by all that was spent; bytes down and up together. Few bytes make a great "
        "quotient even where little is learnt (local sends next to nothing): read it beside the curves."
    )
    columns = [Column("method"), Column(s.metric, "share"), *(Column(f"{s.metric} {k}", "rate") for k in kinds)]
    title = f"{s.metric.capitalize()} per joule and per byte"
    return Figure("efficiency", title, caption, views, Table(columns, rows), s.names)


# ---- the cost of a target
def reached(c: Curve, target: float, cost: str) -> float | None:
    """What had been spent at the first scored round with this mean."""
    return next((x for x, v in zip(c.costs[cost], c.scores, strict=True) if v["mean"] >= target), None)


def targets(s: Sums, asked: float | None) -> Figure | None:
    """What each mean costs, until it is first reached under all seeds."""
    best = {n: [max(v["mean"] for v in c.scores) for c in by_seed.values()] for n, by_seed in s.curves.items()}
    tops = [min(v) for v in best.values() if v]
    if s.lower or not tops or max(tops) <= 0:
        return None
    grid = [i / STEPS for i in range(1, STEPS) if i / STEPS <= max(tops)]
    aim = asked if asked is not None else _aim(tops)
    levels = sorted({*grid, aim})
    views: dict[tuple[str, str], Chart] = {}
    for x, axis in COSTS.items():
        lines = []
        for i, n in enumerate(s.names):
            found = [(t, v) for t in levels if (v := _mean(s.curves[n], t, x)) is not None]
            if found:
                lines.append(Line(i, [t for t, _ in found], [v for _, v in found]))
        if lines:
            target = Axis(f"target: mean {s.metric} over clients", "share")
            views["", x] = Lines(target, Axis(f"{axis.name} until it is reached", axis.kind), lines)
    if not views:
        return None
    rows: list[list[Value]] = []
    for t in sorted({aim, *grid[-4:]}):
        for n in s.names:
            there = sum(reached(c, t, "rounds") is not None for c in s.curves[n].values())
            rows.append([t, n, f"{there} of {len(s.curves[n])}", *(_mean(s.curves[n], t, x) for x in COSTS)])
    caption = s.caption(
        f"A target counts as reached at the first scored round with that mean; a line ends where a method, under any "
        f"of its seeds, goes no further. The table has the target {aim:g} and the highest that are reached.",
        moment=SCORED,
        pick="the first scored round at or above the target",
    )
    columns = [Column("target", "share"), Column("method"), Column("seeds that reach it"), *COST_COLUMNS]
    return Figure("target", "Cost to a target", caption, views, Table(columns, rows), s.names)


def _aim(tops: list[float]) -> float:
    """The highest twentieth that at least half of the methods reach."""
    middle = sorted(tops)[(len(tops) - 1) // 2]
    return max(1, math.floor(middle * STEPS + 1e-9)) / STEPS


def _mean(by_seed: Mapping[int, Curve], target: float, cost: str) -> float | None:
    found = [reached(c, target, cost) for c in by_seed.values()]
    return None if not found or None in found else over(found)
