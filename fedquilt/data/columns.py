"""Columns of parquet files, checked: what is wrong is said with the file and the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .table import Entry

Array = np.ndarray[Any, Any]


class Corrupt(ValueError):
    """A file does not hold what it should; the text names the file, and the row where it is about one."""


@dataclass(frozen=True, eq=False)
class Columns:
    """One file's columns: samples as the file has them, labels, and natural owners as texts."""

    file: str
    x: Any
    y: Tensor
    owners: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()

    def bad(self, row: int, what: str) -> Corrupt:
        """What is wrong with a row."""
        whose = f" (of {self.owners[row]})" if self.owners else ""
        return Corrupt(f"{self.file}, row {row}{whose}: {what}")


def read(path: Path, entry: Entry) -> Columns:
    """The columns of a file that an entry of the table asks for."""
    file = f"{path.parent.name}/{path.name}"
    table = opened(path, file)
    x = column(table, entry.x, file)
    group = next((g for g in entry.group if all(c in table.column_names for c in g.split("+"))), "")
    named = [texts(table, c, file, entry.unnamed) for c in group.split("+")] if group else []
    owners = tuple("+".join(several) for several in zip(*named, strict=True))
    if entry.group and not group:
        raise Corrupt(f"{file} has no column {' or '.join(entry.group)}; it has {_named(table)}")
    y = labels(table, entry, file, owners)
    if not entry.length:
        return Columns(file, x, y, owners)
    if entry.length not in table.column_names:
        raise Corrupt(f"{file} has no column {entry.length}; it has {_named(table)}")
    return Columns(file, x, y, owners, tuple(numbers(table.column(entry.length), file, entry.length).tolist()))


def opened(path: Path, file: str) -> Any:
    """A whole parquet file."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError(f"reading {file} needs pyarrow: pip install 'fedquilt[data]'") from None
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as source:
            table = source.read(use_threads=False)
            table.validate(full=True)
            return table
    except Exception as error:  # a broken file raises anything, down to a MemoryError
        reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise Corrupt(f"{file} is not readable as parquet ({reason}): get it again") from error


def column(table: Any, names: Sequence[str], file: str) -> Any:
    """The first of these columns that is there, as one array; ``0..560`` is a matrix of so many columns."""
    for name in names:
        if ".." in name:
            first, last = map(int, name.split(".."))
            wanted = [str(i) for i in range(first, last + 1)]
            if all(w in table.column_names for w in wanted):
                return np.stack([numbers(table.column(w), file, w) for w in wanted], 1)
        elif name in table.column_names:
            return joined(table.column(name))
    raise Corrupt(f"{file} has no column {' or '.join(names)}; it has {_named(table)}")


def _named(table: Any) -> str:
    """The names of the columns, or of some, where they are many."""
    names = table.column_names
    return ", ".join(names if len(names) <= 12 else [*names[:4], "...", *names[-4:]])


def joined(column: Any) -> Any:
    """A column in one piece."""
    chunks = column.combine_chunks()
    return chunks.chunk(0) if hasattr(chunks, "chunk") else chunks


def numbers(column: Any, file: str, name: str) -> Array:
    """A column of numbers; a hole is refused."""
    array = joined(column)
    if array.null_count:
        raise Corrupt(f"{file}, row {hole(array)}: {name} is empty")
    try:
        out: Array = np.asarray(array)
    except (ValueError, TypeError) as error:
        raise Corrupt(f"{file}: {name} is not a column of numbers ({error})") from error
    if not np.issubdtype(out.dtype, np.number):
        raise Corrupt(f"{file}: {name} is not a column of numbers, but of {array.type}")
    return out


def hole(array: Any) -> int:
    """The first row without a value."""
    return int(np.argmax(np.asarray(array.is_null())))


def texts(table: Any, name: str, file: str, unnamed: str = "") -> list[str]:
    """A column of names or numbers, as texts; a hole is ``unnamed``, or refused."""
    array = joined(table.column(name))
    if array.null_count and not unnamed:
        raise Corrupt(f"{file}, row {hole(array)}: {name} is empty")
    return [unnamed if v is None else str(v) for v in array.to_pylist()]


def labels(table: Any, entry: Entry, file: str, owners: Sequence[str]) -> Tensor:
    """The labels, from 0; one that is no class is refused."""
    name = next((y for y in entry.y if y in table.column_names), None)
    if name is None:
        raise Corrupt(f"{file} has no column {' or '.join(entry.y)}; it has {_named(table)}")
    found = numbers(table.column(name), file, name)
    if not np.issubdtype(found.dtype, np.integer):
        raise Corrupt(f"{file}: {name} is a column of whole numbers, not of {found.dtype}")
    y = found.astype(np.int64) - entry.first
    wrong = np.flatnonzero((y < 0) | (y >= entry.classes))
    if len(wrong):
        row = int(wrong[0])
        span = f"{entry.first} to {entry.first + entry.classes - 1}"
        raise Columns(file, None, torch.zeros(0), tuple(owners)).bad(
            row, f"label {int(found[row])} is not one of the {entry.classes} classes ({span})"
        )
    return torch.from_numpy(y)
