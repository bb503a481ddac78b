"""Figures of what it all came to: final figures, gains over local, the trials of a search."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ..cells import against
from ..history import Record
from .chart import Axis, Chart, Dot, Dots, Figure, Line, Lines
from .sums import Sums
from .table import Column, Table, Value, shown


def final(s: Sums) -> Figure | None:
    """Mean and interval of each method, with all that stands in the table of a comparison."""
    cell = s.cell
    if cell is None:
        return None
    kind = s.measure.kind
    rows = cell["rows"]
    dots = [
        Dot(s.names.index(r["label"]), i, r["mean"], low, high, r["by_seed"] if len(r["by_seed"]) > 1 else ())
        for i, r in enumerate(rows)
        for low, high in [r["interval"]]
    ]
    axis = Axis(f"{s.metric}, mean over clients", kind)
    views: dict[tuple[str, str], Chart] = {("", ""): Dots(axis, [r["label"] for r in rows], dots)}
    note = "Bars: 95 % bootstrap intervals over clients within seeds"
    note += "; small dots: seeds. " if any(d.small for d in dots) else ". "
    note += "Spread: standard deviation over clients. p: Wilcoxon's signed rank test, paired by client and seed, with "
    note += "Holm's correction over all pairs. Best on validation: at the scored round with the best validation mean. "
    note += "FLOPs, time and energy: a weight that is zero is charged like any other."
    note += _unseen(s)
    return Figure("final", "Final figures", s.caption(note), views, _final_table(s, cell), s.names)


def _unseen(s: Sums) -> str:
    """How those fare who never train."""
    said = []
    for name, by_seed in s.section.runs.items():
        found = [t.at[max(t.at)].get(s.split, {}).get("unseen") for t in by_seed.values() if t in s.counted]
        if new := [u for u in found if u]:
            before, after = (fmean(u[k] for u in new) for k in ("before", "after"))
            said.append(f"{name} {shown(before, s.measure.kind)} and {shown(after, s.measure.kind)}")
    told = "; ".join(said)
    return f" Clients that never train, before and after they adapt to their own data: {told}." if said else ""


FINAL = {
    "by samples": "weighted",
    "macro-F1": "macro_f1",
    "global model": "global",
    "best on validation": "best_on_validation",
}


def _final_table(s: Sums, cell: Record) -> Table:
    kind = s.measure.kind
    others = [(n, cell[n]) for n in ("local", "finetuned") if cell[n] and len(cell["rows"]) > 1]
    columns = [Column("method"), Column("seeds", "count")]
    columns += [Column(n, kind) for n in ("mean", "low", "high", "spread", "spread over seeds", "worst tenth", *FINAL)]
    for _, label in others:
        columns += [Column(f"less {label}", "gain"), Column("low", "gain"), Column("high", "gain")]
        columns += [Column("p", "p"), Column(f"better than {label} for", "percent")]
    columns += [
        Column("down", "B"),
        Column("up", "B"),
        Column("FLOPs", "FLOP"),
        Column("time", "s"),
        Column("energy", "J"),
    ]
    rows: list[list[Value]] = []
    for r in cell["rows"]:
        line: list[Value] = [r["label"], len(r["seeds"]), r["mean"], *r["interval"], r["spread_clients"]]
        line += [r["spread_seeds"], r["worst_decile"], *(r[k] for k in FINAL.values())]
        for _, label in others:
            pair = against(cell, r["label"], label)
            line += (
                [None] * 5 if pair is None else [pair["difference"], *pair["interval"], pair["p_holm"], pair["better"]]
            )
        rows.append([*line, *(r[k] for k in ("down", "up", "flops", "seconds", "joules"))])
    return Table(columns, rows)


def gains(s: Sums) -> Figure | None:
    """By how much each client does better than alone, the least first."""
    base = s.cell["local"] if s.cell else None
    if base is None or len(s.section.runs) < 2:
        return None
    lines = []
    rows: list[list[Value]] = []
    sign = -1 if s.lower else 1
    for i, name in enumerate(s.names):
        each = _gains(s, base, name)
        if name == base or not each:
            continue
        found = sorted(sign * g for g in each)
        lines.append(Line(i, [(k + 0.5) / len(found) for k in range(len(found))], found))
        better = sum(g > 0 for g in found) / len(found)
        tenth = fmean(found[: -(-len(found) // 10)])
        rows.append(
            [
                name,
                len(found),
                fmean(found),
                tenth,
                found[len(found) // 2],
                better,
                sum(g < 0 for g in found) / len(found),
            ]
        )
    if not lines:
        return None
    kind = "gain" if not s.lower else "rate"
    gain = Axis(f"{s.metric} {'saved' if s.lower else 'gained'} over {base}", kind)
    views: dict[tuple[str, str], Chart] = {
        ("share of clients", "gain"): Lines(Axis("share of clients, sorted by gain", "percent"), gain, lines, level=0.0)
    }
    columns = [
        Column("method"),
        Column("clients and seeds", "count"),
        Column("mean gain", kind),
        Column("worst tenth", kind),
    ]
    columns += [Column("median", kind), Column("better for", "percent"), Column("worse for", "percent")]
    note = f"Each client beside itself under {base}, of the same seed. Left of where a line crosses zero, clients lose."
    return Figure("gain", f"Who gains over {base}", s.caption(note), views, Table(columns, rows), s.names)


def _gains(s: Sums, base: str, name: str) -> list[float]:
    out = []
    for seed, told in s.section.runs[name].items():
        other = s.section.runs[base].get(seed)
        if other in s.counted and told in s.counted and other is not None:
            mine, theirs = told.clients(s.split), other.clients(s.split)
            out += [mine[c][s.metric] - theirs[c][s.metric] for c in mine.keys() & theirs.keys()]
    return out


def trials(s: Sums, record: Mapping[str, Any]) -> Figure | None:
    """What each trial of a search came to."""
    told = record.get("trials")
    if not told:
        return None
    labels = list(dict.fromkeys(t["label"] for t in told))
    rows: list[list[Value]] = []
    dots, names = [], []
    for t in told:
        chosen = record["chosen"].get(t["label"]) or {}
        mine = bool(chosen) and all(chosen[k] == v for k, v in t["tried"].items())
        score = t.get("score")
        rows.append(
            [t["label"], *map(str, t["tried"].values()), score, "failed" if "failed" in t else "chosen" if mine else ""]
        )
        if score is not None:
            names.append(
                " ".join([t["label"], *(f"{k}={v}" for k, v in t["tried"].items()), *(["(chosen)"] if mine else [])])
            )
            dots.append(
                Dot(
                    labels.index(t["label"]), len(names) - 1, score, small=t["by_seed"] if len(t["by_seed"]) > 1 else ()
                )
            )
    if not dots:
        return None
    kind = s.measure.kind
    views: dict[tuple[str, str], Chart] = {("", ""): Dots(Axis(f"{s.metric}, mean over clients", kind), names, dots)}
    columns = [Column("method"), *(Column(k) for k in record["over"]), Column(f"mean {s.metric}", kind), Column("")]
    note = f"{len({str(t['tried']) for t in told})} trials for every method; the best mean is chosen."
    return Figure("trials", "The search", s.caption(note), views, Table(columns, rows), labels)
