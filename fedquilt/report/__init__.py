"""One page of figures and tables for a run, a comparison, a search or a folder of runs; it opens without a network.

    report([Path("runs/mine")])                  # runs/mine/report.html
    report([Path("runs")], figures=True)         # and each figure as .svg and .pdf, for papers

Everything is read from the folders' records: of runs that were interrupted, too.  Writing the page needs
neither torch nor anything to draw with: :mod:`.draw` lays out each figure once, for page, file and paper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..schema import BadSetting
from . import clients, curves, ends, parquet, pdf
from .chart import Figure
from .draw import draw
from .page import page
from .read import Book, book
from .sums import Sums
from .svg import svg

NAME = "report.html"


@dataclass(frozen=True)
class Written:
    """What was written: the page, and the files of figures and records that were asked for."""

    page: Path
    figures: tuple[Path, ...] = ()
    records: tuple[Path, ...] = ()


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    figures: bool = False,
    records: bool = False,
    target: float | None = None,
) -> Written:
    """Write the page of what stands in these folders; beside it ``figures/``, and ``records`` as Parquet."""
    for missing in (f for f in folders if not f.is_dir()):
        raise BadSetting(f"there is no folder {missing}")
    place = out or (folders[0] if len(folders) == 1 else Path()) / NAME
    if figures:
        pdf.needed()
    if records:
        parquet.needed()
    found = book(folders)
    parts = [(s, list(drawn(s, found, target))) for s in (Sums(section, found.split) for section in found.sections)]
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_name(place.name + ".tmp")
    half.write_text(page(found, parts), encoding="utf-8")
    half.replace(place)
    saved = tuple(_saved(parts, place.parent / "figures")) if figures else ()
    return Written(place, saved, tuple(parquet.save(found, place.parent)) if records else ())


def drawn(s: Sums, found: Book, target: float | None) -> Iterator[Figure]:
    """The figures of a section; those of a search look at nothing but what it was judged on."""
    if found.trials is not None:
        made = [ends.trials(s, found.trials), curves.curves(s), curves.losses(s), clients.holdings(s)]
    else:
        made = [
            ends.final(s),
            curves.curves(s),
            curves.efficiency(s),
            curves.targets(s, target),
            ends.gains(s),
            clients.spread(s),
            clients.tiers(s),
            clients.spent(s),
            curves.losses(s),
            clients.holdings(s),
        ]
    yield from (f for f in made if f is not None and f.views)


def _saved(parts: Sequence[tuple[Sums, Sequence[Figure]]], folder: Path) -> Iterator[Path]:
    """Each view of each figure as a .svg and a .pdf file."""
    folder.mkdir(parents=True, exist_ok=True)
    for s, figures in parts:
        for figure in figures:
            for (x, y), chart in figure.views.items():
                words = [*([s.section.title] if len(parts) > 1 else []), figure.name, y, x]
                stem = re.sub(r"[^a-z0-9.]+", "-", "-".join(w for w in words if w).lower()).strip("-")
                sketch = draw(chart, figure.series)
                text = svg(sketch, figure.title, str(figure.caption), stem, alone=True)
                (folder / f"{stem}.svg").write_text(text)
                pdf.save(sketch, folder / f"{stem}.pdf", figure.title)
                yield from (folder / f"{stem}.svg", folder / f"{stem}.pdf")
