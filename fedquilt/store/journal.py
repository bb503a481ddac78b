"""Records that are only ever added, one line of JSON each."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..types import Json
from .files import Corrupt, StoreError, Unsaved, saving, sync_folder
from .values import text

BUFFER = 1 << 16


class Journal:
    """A file of JSON lines that only grows, but for :meth:`truncate` when a run goes back to an earlier round.

    Lines are valid JSON for every reader: compact, keys in their order, ``null`` for nan and the
    infinities.  Records wait in memory until :meth:`flush`, and are durable after :meth:`sync`.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._waiting = bytearray()
        self._written = self.path.stat().st_size if self.path.exists() else 0
        self._named = False  # is the file's name durable?
        self._lost = False  # did the disk fail to keep what it had been given?

    @property
    def offset(self) -> int:
        """Bytes of all records so far, those that wait included."""
        return self._written + len(self._waiting)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record."""
        self._waiting += text(_plain(record, "record")).encode() + b"\n"
        if len(self._waiting) > BUFFER:
            self.flush()

    def flush(self) -> None:
        """Give the records that wait to the operating system: other processes see them."""
        if self._waiting:
            self._write(durable=False)

    def sync(self) -> None:
        """Make all records so far durable."""
        self._write(durable=True)

    def _write(self, durable: bool) -> None:
        if self._lost:
            raise Unsaved(f"{self.path} has lost records that the disk had taken: see to the disk and resume")
        with saving(f"{self.path} cannot be written"):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                if (size := os.fstat(fd).st_size) != self._written:
                    raise StoreError(
                        f"{self.path} holds {size} bytes, not the {self._written} that were written: another program "
                        "has changed it; resume the run, which takes it back to the last saved round"
                    )
                while self._waiting:
                    n = os.write(fd, self._waiting)
                    self._written += n
                    del self._waiting[:n]
                if durable:
                    # once it has failed it may lie: the next one says yes though the bytes are gone
                    self._lost = True
                    os.fsync(fd)
                    self._lost = False
            finally:
                os.close(fd)
            if durable and not self._named:
                sync_folder(self.path.parent)
                self._named = True

    def check(self, offset: int) -> None:
        """Are there as many bytes as were once durable?"""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < offset:
            raise Corrupt(f"{self.path} holds {size} bytes of the {offset} that were written")

    def truncate(self, offset: int) -> None:
        """Forget all records after the first ``offset`` bytes."""
        self.check(offset)
        self._waiting.clear()
        if self.path.exists():
            with saving(f"{self.path} cannot be cut to {offset} bytes"):
                os.truncate(self.path, offset)
        self._written, self._lost = offset, False

    def records(self) -> list[dict[str, Any]]:
        """All records so far; a last line that a crash has torn is not one."""
        self.flush()
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        out = []
        for i, line in enumerate(lines[:-1], 1):
            try:
                out.append(json.loads(line))
            except ValueError as e:
                raise Corrupt(f"{self.path}: line {i} is not JSON ({e}): bring the file back from a copy") from e
        return out


def _plain(v: Any, place: str) -> Json:
    if v is None or isinstance(v, str | bool | int):
        return v
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if isinstance(v, list | tuple):
        return [_plain(x, f"{place}[{i}]") for i, x in enumerate(v)]
    if isinstance(v, Mapping) and all(isinstance(k, str) for k in v):
        return {k: _plain(x, f"{place}[{k!r}]") for k, x in v.items()}
    kind = "a mapping with keys that are no strings" if isinstance(v, Mapping) else f"a {type(v).__name__}"
    raise TypeError(f"{place} is {kind}, which no journal takes: numbers, text, lists and mappings with text keys only")
