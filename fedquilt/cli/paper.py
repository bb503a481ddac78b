"""``report``: a page of figures and tables, and files for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..report import report
from ..schema import BadSetting
from .tables import print_json


def write(
    folders: Sequence[Path], out: Path | None, figures: bool, parquet: bool, target: float | None, as_json: bool
) -> int:
    """Write what is asked for and say where it is."""
    if not folders:
        raise BadSetting("report needs a folder: that of a run, of a comparison, or one that holds several", "folders")
    if target is not None and not 0 < target <= 1:
        raise BadSetting(f"--target is an accuracy, above 0 and at most 1, not {target}", "target")
    if out is not None and out.suffix != ".html":
        raise BadSetting(f"--out is the page, such as {out / 'report.html'}, not {out}", "out")
    try:
        done = report(folders, out, figures, parquet, target)
    except OSError as error:
        raise BadSetting(f"the report cannot be written: {error}") from error
    if as_json:
        files = {"figures": [*map(str, done.figures)], "records": [*map(str, done.records)]}
        print_json({"report": str(done.page), **files})
        return 0
    if done.figures:
        print(f"  {len(done.figures)} figures in {done.figures[0].parent}")
    for path in done.records:
        print(f"  {path}")
    print(f"  report: {done.page}")
    return 0
