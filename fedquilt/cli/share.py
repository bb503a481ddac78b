"""``partition``: what each client holds, as a table or a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.held import held
from ..data.shard import SPLITS
from ..prepare import dealt
from ..run import Run
from ..schema import BadSetting
from ..words import count
from .tables import console, print_json, table

MOST_COLUMNS = 20  # classes that a table shows one by one


def partition(said: Mapping[str, Any], plot: Path | None, as_json: bool) -> int:
    """Share the data out and say what each client holds."""
    run = Run.of(said, "partition")
    shards = dealt(run)
    rows = held(shards)
    if plot is not None:
        draw(rows, shards.data.classes, f"{run.data}, {run.partition}, {count(run.clients, 'client')}", plot)
    if as_json:
        print_json({"data": run.data, "partition": run.partition, "seed": run.seed, "clients": rows})
        return 0
    classes = shards.data.classes if rows and rows[0]["classes"] and shards.data.classes <= MOST_COLUMNS else 0
    made = table(f"{run.data} among {count(run.clients, 'client')}: {run.partition}, seed {run.seed}")
    for name in ("client", *SPLITS, "kinds", *map(str, range(classes))):
        made.add_column(name, justify="right")
    for row in rows:
        kinds = str(sum(n > 0 for n in row["classes"]))
        made.add_row(
            *(str(row[k]) for k in ("client", *SPLITS)), kinds, *(str(n or "") for n in row["classes"][:classes])
        )
    console().print(made)
    if plot is not None:
        print(f"  drawn in {plot}")
    return 0


def draw(held: list[dict[str, Any]], classes: int, title: str, path: Path) -> None:
    """A circle for each client and class, as large as the samples are many."""
    try:
        import matplotlib
    except ImportError:
        raise BadSetting("a plot needs matplotlib: pip install 'fedquilt[report]'; the table needs nothing") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    most = max((n for row in held for n in row["classes"]), default=0)
    if not most:
        raise BadSetting("these targets are numbers, not classes: there is nothing to draw")
    figure, axes = pyplot.subplots(figsize=(max(4, len(held) / 5), max(3, classes / 5)), layout="constrained")
    spots = [(row["client"], c, n) for row in held for c, n in enumerate(row["classes"]) if n]
    axes.scatter([s[0] for s in spots], [s[1] for s in spots], [120 * s[2] / most for s in spots], color="#0072B2")
    axes.set(xlabel="client", ylabel="class", title=title)
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise BadSetting(f"{path} cannot be written: {error}") from error
    finally:
        pyplot.close(figure)
