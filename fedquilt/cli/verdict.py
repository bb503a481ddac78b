"""The tables of a comparison and of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.padding import Padding
from rich.text import Text

from ..cells import against
from ..words import amount, clock, count, share
from .tables import SPLITS, console, table


def print_comparison(record: Mapping[str, Any]) -> None:
    """For each data set and partition: what each method reaches and costs, and how they compare."""
    out = console()
    for cell in record["cells"]:
        if not cell["rows"]:
            continue
        out.print(_figures(cell))
        out.print(_pairs(cell))
        out.print(Padding(_claim(cell), (0, 2)), highlight=False)
    for notice in record["notices"]:
        out.print(Padding(f"Note: {notice}.", (0, 2)), highlight=False)


def _figures(cell: Mapping[str, Any]) -> Any:
    seeds = count(max((len(r["seeds"]) for r in cell["rows"]), default=0), "seed")
    made = table(
        f"{cell['data']}, {cell.get('shared', cell['partition'])}: {cell['metric']} on {SPLITS[cell['split']]}, {seeds}"
    )
    made.add_column("method", no_wrap=True)
    for name in ("mean [95 %]", "spread", "worst tenth", "best on val.", "down", "up", "compute", "time"):
        made.add_column(name, justify="right", no_wrap=True)
    for row in cell["rows"]:
        low, high = row["interval"]
        made.add_row(
            Text(row["label"], "bold"),
            f"{share(row['mean'])} [{share(low)}, {share(high)}]",
            share(row["spread_clients"]),
            share(row["worst_decile"]),
            share(row["best_on_validation"]),
            amount(row["down"], "B"),
            amount(row["up"], "B"),
            amount(row["flops"], "FLOP"),
            clock(row["seconds"]),
        )
    return made


def _pairs(cell: Mapping[str, Any]) -> Any:
    """Each method against local and against fine-tuned fedavg."""
    made = table("paired by client and seed")
    made.add_column("method", no_wrap=True)
    others = [(n, cell[n]) for n in ("local", "finetuned") if cell[n]]
    for _, label in others:
        made.add_column(f"less {label} [95 %]", justify="right")
        made.add_column("p", justify="right")
        made.add_column("better for", justify="right")
    for row in cell["rows"]:
        said: list[str] = []
        for _, label in others:
            pair = against(cell, row["label"], label)
            if pair is None:
                said += ["", "", ""]
                continue
            low, high = pair["interval"]
            said += [
                f"{pair['difference']:+.3f} [{low:+.3f}, {high:+.3f}]",
                _p(pair["p_holm"]),
                f"{pair['better']:.0%}",
            ]
        made.add_row(Text(row["label"], "bold"), *said)
    return made if others else ""


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _claim(cell: Mapping[str, Any]) -> str:
    """Whose figures these are, and what the statistics say."""
    said = cell["whose"]
    return (
        f"Population: {said['population']}. Model: {said['model']}. Moment: {said['moment']}. Pick: {said['pick']}; "
        f"'best on val.' picks the scored round that is best on validation data. "
        "Spread: standard deviation over clients. Intervals: bootstrap over clients within seeds. "
        "p: Wilcoxon's signed rank test, Holm's correction over all pairs. Better for: share of clients. "
        "Costs: mean over seeds; a weight that is zero is charged like any other."
    )


def print_search(record: Mapping[str, Any]) -> None:
    """Every trial, and which was chosen."""
    split = SPLITS[record["split"]]
    made = table(f"search over {', '.join(record['over'])}, judged on {split} data alone")
    for name in ("method", *record["over"], f"mean over clients ({split})", ""):
        made.add_column(name, justify="left" if name in ("method", "") else "right")
    for trial in record["trials"]:
        chosen = record["chosen"][trial["label"]]
        mine = bool(chosen) and all(chosen[k] == v for k, v in trial["tried"].items())
        score = "failed" if "failed" in trial else share(trial["score"])
        made.add_row(trial["label"], *(str(v) for v in trial["tried"].values()), score, "chosen" if mine else "")
    console().print(made)
    n = len({str(t["tried"]) for t in record["trials"]})
    print(f"  {count(n, 'trial')} for every method, of the model that each client would use, after the last round")
