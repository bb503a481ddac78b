"""The records of runs as Parquet files, on demand: one a kind, with the run's label, data and seed in each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..history import KINDS
from ..schema import BadSetting
from .read import Book


def needed() -> None:
    """Refuse where pyarrow is missing."""
    if find_spec("pyarrow") is None:
        raise BadSetting("Parquet files need pyarrow: pip install 'fedquilt[report]'")


def save(book: Book, folder: Path) -> Iterator[Path]:
    """``rounds.parquet``, ``clients.parquet`` and ``scores.parquet`` in this folder, and what each client holds."""
    import pyarrow
    import pyarrow.parquet

    for kind in (*KINDS, "holdings"):
        rows = list(_rows(book, kind))
        if rows:
            names = list(dict.fromkeys(k for row in rows for k in row))
            columns = {k: [row.get(k) for row in rows] for k in names}
            path = folder / f"{kind}.parquet"
            pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
            yield path


def _rows(book: Book, kind: str) -> Iterator[dict[str, Any]]:
    for section in book.sections:
        for label, by_seed in section.runs.items():
            for seed, told in by_seed.items():
                run = {"run": told.record["id"], "method": label, "data": told.data, "seed": seed}
                run["partition"] = told.settings["partition"]
                for record in told.held if kind == "holdings" else getattr(told.history, kind):
                    yield run | flat(record)


def flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A record without records in it: ``{"a": {"b": 1}}`` is ``{"a.b": 1}``."""
    out: dict[str, Any] = {}
    for k, v in record.items():
        out |= flat(v, f"{before}{k}.") if isinstance(v, Mapping) else {before + k: v}
    return out
