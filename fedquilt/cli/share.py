"""``partition``: what each client holds, as a table or a picture."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ..data.held import held
from ..data.shard import SPLITS
from ..prepare import dealt, sharing
from ..run import Run
from ..schema import BadSetting
from ..words import count, repeated
from .tables import console, print_json, table

MOST_COLUMNS = 20  # classes that a table shows one by one


def partition(said: Mapping[str, Any], plot: Path | None, as_json: bool) -> int:
    """Share the data out and say what each client holds."""
    run = Run.of(said, "partition")
    shards = dealt(run)
    rows = [row | {"unseen": row["client"] in shards.unseen} for row in held(shards)]
    told = sharing(run, shards.data)
    if plot is not None:
        draw(rows, shards.data.classes, f"{run.data}, {told}, {count(run.clients, 'client')}", plot)
    if as_json:
        known = {"fingerprint": shards.fingerprint, "repeats": shards.repeats}
        print_json({"data": run.data, "partition": told, "seed": run.seed, **known, "clients": rows})
        return 0
    classes = shards.data.classes if rows and rows[0]["classes"] and shards.data.classes <= MOST_COLUMNS else 0
    made = table(f"{run.data} among {count(run.clients, 'client')}: {told}, seed {run.seed}")
    for name in ("client", *SPLITS, "kinds", *map(str, range(classes))):
        made.add_column(name, justify="right")
    for row in rows:
        kinds = str(sum(n > 0 for n in row["classes"]))
        made.add_row(
            f"{row['client']}{'*' * row['unseen']}",
            *(str(row[k]) for k in SPLITS),
            kinds,
            *(str(n or "") for n in row["classes"][:classes]),
        )
    console().print(made)
    if shards.unseen:
        print("  * never trains: scored before and after adapting to its own training part")
    if shards.repeats["samples"]:
        print(f"  {repeated(shards.repeats)}.")
    if plot is not None:
        print(f"  drawn in {plot}")
    return 0


STEP, LEFT, TOP, BOTTOM = 16, 44, 30, 40  # pixels between two spots, and around all of them
SHADES = {False: "#0072B2", True: "#D55E00"}  # of clients that train, and of those that never do


def draw(rows: list[dict[str, Any]], classes: int, title: str, path: Path) -> None:
    """A circle for each client and class, whose area goes with the samples: plain SVG, which any browser shows."""
    if path.suffix != ".svg":
        raise BadSetting(f"{path} cannot be written: a plot is a file named .svg")
    if not any(row["classes"] for row in rows):
        raise BadSetting("these targets are numbers, not classes: there is nothing to draw")
    most = max(n for row in rows for n in row["classes"])
    wide, high = LEFT + STEP * (len(rows) + 1), TOP + STEP * (classes + 1)
    width = max(wide, LEFT + 7 * len(title))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high + BOTTOM}" width="{width}" role="img" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{high + BOTTOM}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{high + 32}">client</text><text x="4" y="{TOP}">class</text>',
    ]
    every = -(-len(rows) // 25), -(-classes // 25)  # a number at every so many places
    out += [_number(LEFT + STEP * (x + 1), high + 14, row["client"]) for x, row in enumerate(rows) if not x % every[0]]
    out += [_number(LEFT - 10, TOP + STEP * (c + 1) + 4, c) for c in range(0, classes, every[1])]
    for x, row in enumerate(rows):
        for c, n in ((c, n) for c, n in enumerate(row["classes"]) if n):
            spot = f'cx="{LEFT + STEP * (x + 1)}" cy="{TOP + STEP * (c + 1)}" r="{0.55 * STEP * (n / most) ** 0.5:.2f}"'
            told = f"<title>client {row['client']}, class {c}: {n}</title>"
            out.append(f'<circle {spot} fill="{SHADES[row["unseen"]]}">{told}</circle>')
    try:
        path.write_text("\n".join([*out, "</svg>", ""]), encoding="utf-8")
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror}") from error


def _number(x: float, y: float, n: int) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle">{n}</text>'
