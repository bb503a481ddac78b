"""Figures of tiers and clients: how each fares, what it spends, what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ..history import Record
from .chart import Axis, Chart, Dot, Dots, Figure, Grid, Line, Lines
from .sums import Sums
from .table import Column, Table, Value

MOST_CLIENTS = 100  # in a grid
MOST_ROWS = 400  # of a table of clients

SPENT = {"bytes": Axis("bytes, down and up", "B"), "FLOPs": Axis("floating point operations", "FLOP")}
SPENT |= {"joules": Axis("energy", "J"), "peak memory": Axis("peak memory", "B")}


def tiers(s: Sums) -> Figure | None:
    """The mean of each class of devices."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, by_seed in s.section.runs.items():
        for told in by_seed.values():
            if told in s.counted:
                for tier, v in told.at[max(told.at)].get(s.split, {"tiers": {}})["tiers"].items():
                    found.setdefault(tier, {}).setdefault(name, []).append(v)
    names = sorted(found)
    if not names:
        return None
    dots = [
        Dot(s.names.index(name), names.index(tier), fmean(v), *((min(v), max(v)) if len(v) > 1 else (None, None)))
        for tier, by_name in found.items()
        for name, v in by_name.items()
    ]
    axis = Axis(f"{s.metric}, mean over the tier's clients", s.measure.kind)
    views: dict[tuple[str, str], Chart] = {("", ""): Dots(axis, [f"tier {t}" for t in names], dots)}
    rows: list[list[Value]] = [[t, n, fmean(v), len(v)] for t in names for n, v in found[t].items()]
    columns = [Column("tier"), Column("method"), Column(f"mean {s.metric}", s.measure.kind), Column("seeds", "count")]
    note = "A tier is a class of devices; in a fleet of tiers its name is the width that its devices can carry."
    note += " Bars: range over seeds." if any(d.low is not None for d in dots) else ""
    return Figure("tiers", "Per tier", s.caption(note), views, Table(columns, rows), s.names)


def spread(s: Sums) -> Figure | None:
    """How the measure is spread over clients."""
    lines = []
    for i, name in enumerate(s.names):
        values = sorted(r[s.metric] for t in _ended(s, name) for r in t.clients(s.split).values())
        if values:
            lines.append(Line(i, values, [(k + 1) / len(values) for k in range(len(values))], steps=True))
    if not lines:
        return None
    views: dict[tuple[str, str], Chart] = {
        (s.metric, "share"): Lines(
            Axis(f"{s.metric} of a client", s.measure.kind), Axis("share of clients up to it", "percent"), lines
        )
    }
    note = "A line further right is better; a steep one treats clients alike." if not s.lower else ""
    rows, cut = _by_client(s)
    columns = [Column("client", "count"), Column("tier"), *(Column(n, s.measure.kind) for n in s.names)]
    return Figure("clients", "Per client", s.caption(note), views, Table(columns, rows, cut), s.names)


def _ended(s: Sums, name: str) -> list[Any]:
    return [t for t in s.section.runs[name].values() if t in s.counted]


def _by_client(s: Sums) -> tuple[list[list[Value]], str]:
    found: dict[int, dict[str, list[float]]] = {}
    tier: dict[int, str] = {}
    for name in s.names:
        for t in _ended(s, name):
            for c, r in t.clients(s.split).items():
                found.setdefault(c, {}).setdefault(name, []).append(r[s.metric])
                tier[c] = r["tier"]
    rows: list[list[Value]] = [
        [c, tier[c], *(fmean(v) if (v := found[c].get(n)) else None for n in s.names)] for c in sorted(found)
    ]
    return rows[:MOST_ROWS], _cut(len(rows), "means over seeds; " if len(s.section.all) > len(s.names) else "")


def _cut(n: int, note: str = "") -> str:
    more = f"the first {MOST_ROWS} of {n}; each run's folder has all" if n > MOST_ROWS else ""
    return (note + more).rstrip("; ").capitalize()


def spent(s: Sums) -> Figure | None:
    """What each client has spent in all rounds, the least first."""
    lines: dict[str, list[Line]] = {k: [] for k in SPENT}
    rows: list[list[Value]] = []
    for i, name in enumerate(s.names):
        told = next(iter(s.section.runs[name].values()))
        each = _spent(told.history.clients, told.held)
        for k in SPENT:
            values = sorted(c[k] for c in each.values())
            if values:
                lines[k].append(Line(i, [(j + 0.5) / len(values) for j in range(len(values))], values))
        rows += [
            [name, c, *(v[k] for k in ("orders", "accepted", "down", "up", "FLOPs", "joules", "peak memory"))]
            for c, v in each.items()
        ]
    if not any(lines.values()):
        return None
    x = Axis("share of clients, the thriftiest first", "percent")
    views: dict[tuple[str, str], Chart] = {("", k): Lines(x, axis, lines[k]) for k, axis in SPENT.items()}
    columns = [Column("method"), Column("client", "count"), Column("orders", "count"), Column("accepted", "count")]
    columns += [
        Column("down", "B"),
        Column("up", "B"),
        Column("FLOPs", "FLOP"),
        Column("energy", "J"),
        Column("peak memory", "B"),
    ]
    caption = s.caption(
        "Sums over all rounds; peak memory is the most of any. "
        f"Seed {told.seed}. Seconds and joules are prices of counts on the client's device.",
        population="all clients, those that were never asked among them (they have spent nothing)",
        model="the one in training",
        moment=f"in all rounds up to {told.rounds}",
        split="training",
        pick="none",
    )
    return Figure(
        "spent", "What each client spends", caption, views, Table(columns, rows[:MOST_ROWS], _cut(len(rows))), s.names
    )


def _spent(records: Sequence[Record], held: Sequence[Record]) -> dict[int, dict[str, float]]:
    keys = ("orders", "accepted", "down", "up", "bytes", "FLOPs", "joules", "peak memory")
    out: dict[int, dict[str, float]] = {h["client"]: dict.fromkeys(keys, 0.0) for h in held}
    for r in records:
        mine = out.setdefault(r["client"], dict.fromkeys(keys, 0.0))
        mine["orders"] += 1
        mine["accepted"] += r["outcome"] == "accepted"
        for k in ("down", "up", "joules"):
            mine[k] += r[k]
        mine["bytes"] += r["down"] + r["up"]
        mine["FLOPs"] += r["flops"]
        mine["peak memory"] = max(mine["peak memory"], r["peak"])
    return dict(sorted(out.items()))


# ---- data
def holdings(s: Sums) -> Figure | None:
    """Which classes each client has, and how many samples of each."""
    told = next((t for t in s.section.all if t.held), None)
    if told is None:
        return None
    first = told.held[:MOST_CLIENTS]
    classes = len(first[0]["classes"])
    labels, counts = [str(h["client"]) for h in first], [h["classes"] for h in first]
    names = [str(c) for c in range(classes)]
    if not classes:
        names, counts = ["train", "val", "test"], [[h[k] for k in ("train", "val", "test")] for h in first]
    views: dict[tuple[str, str], Chart] = {
        ("", ""): Grid("client", "class" if classes else "part", labels, names, counts)
    }
    note = f"The darker, the more samples (by square root). Seed {told.seed}. "
    note += f"The first {MOST_CLIENTS} of {len(told.held)} clients. " if len(told.held) > MOST_CLIENTS else ""
    note += "The table counts samples by part and class." if classes else ""
    caption = s.caption(
        note.strip(),
        population=f"all {len(told.held)} clients",
        model="none: these are samples",
        moment="before the first round",
        split="training, validation and test parts together",
        pick="none",
    )
    columns = [Column("client", "count"), *(Column(k, "count") for k in ("train", "val", "test"))]
    columns += [Column(f"class {c}", "count") for c in range(classes)]
    rows: list[list[Value]] = [
        [h["client"], h["train"], h["val"], h["test"], *h["classes"]] for h in told.held[:MOST_ROWS]
    ]
    table = Table(columns, rows, _cut(len(told.held)))
    return Figure("holdings", "What each client holds", caption, views, table)
