"""A disk that fails: every system call that changes it is counted, may fail or be the last, and may be lost."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "truncate")


class Died(BaseException):
    """The process ends here: nothing that it would still do reaches the disk."""


@dataclass(frozen=True)
class Call:
    """What was asked of the disk."""

    name: str
    path: str
    to: str = ""
    data: bytes = b""
    size: int = 0
    new: bool = False


@dataclass
class Syscalls:
    """The calls so far; call ``at`` (from 0) fails as ``how`` says: ``full``, or ``die``."""

    at: int | None = None
    how: str = "full"
    log: list[Call] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    hit: bool = False
    failed: tuple[str, str] = ("", "")
    no_room: int | None = None

    def fails(self) -> bool:
        if self.hit and self.how == "die":
            raise Died
        fails = len(self.log) == self.at
        self.hit = self.hit or fails
        return fails

    def fail(self, name: str, on: Any) -> None:
        self.failed = (name, self.files.get(on, "") if isinstance(on, int) else os.fspath(on))
        self.log.append(Call("failed", ""))
        if self.how == "die":
            raise Died
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def call(self, name: str, real: Any, *args: Any, **more: Any) -> Any:
        if self.fails():
            part = len(args[1]) // 2 if name == "write" else 0
            if part and self.how == "die":
                real(args[0], memoryview(args[1])[:part])
            if part == 0 or self.how == "die":
                self.fail(name, args[0])
            # a disk takes what it has room for, and says no to the rest
            args, self.no_room = (args[0], memoryview(args[1])[:part]), args[0]
        elif name == "write" and args[0] == self.no_room:
            self.fail(name, args[0])
        new = name == "open" and not os.path.exists(args[0])
        out = real(*args, **more)
        path = self.files.get(args[0], "") if isinstance(args[0], int) else os.fspath(args[0])
        if name == "open":
            self.files[out] = path
            self.no_room = None if self.no_room == out else self.no_room
        self.log.append(
            Call(
                name,
                path,
                os.fspath(args[1]) if name == "replace" else "",
                bytes(args[1])[:out] if name == "write" else b"",
                args[1] if name == "truncate" else args[1] & os.O_TRUNC if name == "open" else 0,
                new,
            )
        )
        return out


@contextmanager
def syscalls(at: int | None = None, how: str = "full") -> Iterator[Syscalls]:
    """Count the calls that are made inside, and let one of them fail."""
    seen = Syscalls(at, how)

    def counted(name: str) -> Any:
        real = getattr(os, name)
        return lambda *args, **more: seen.call(name, real, *args, **more)

    patches = [patch.object(os, name, counted(name)) for name in CALLS]
    for p in patches:
        p.start()
    try:
        yield seen
    finally:
        for p in patches:
            p.stop()


# ---- loss of power
@dataclass
class _File:
    durable: bytes = b""
    now: bytes = b""
    kept: int = 0  # so many bytes are as they were when it was last synced


class Platter:
    """What a disk may hold after the power fails: only what was synced is certain.

    A name is certain once its folder was synced, bytes once their file was.  Of the rest any part
    may be there: names in any subset, of the bytes any prefix.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.names: dict[str, _File | None] = {self.root: None}  # certain; None is a folder
        self.current: dict[str, _File | None] = {self.root: None}
        self.pending: dict[str, list[dict[str, _File | bool | None]]] = {}

    def play_all(self, calls: Iterable[Call]) -> None:
        """All of these happen."""
        for c in calls:
            self.play(c)

    def play(self, c: Call) -> bool:
        """A call happens; is it one on this disk?"""
        if not c.path.startswith(self.root):
            return False
        if c.name == "open" and c.new:
            self._name(c.path, {c.path: _File()})
        elif c.name == "mkdir":
            self._name(c.path, {c.path: None})
        elif c.name == "unlink":
            self._name(c.path, {c.path: False})
        elif c.name == "replace":
            self._name(c.path, {c.path: False, c.to: self.current[c.path]})
        elif c.name == "fsync" and self.current[c.path] is None:
            for change in self.pending.pop(c.path, []):
                _apply(self.names, change)
        f = self.current.get(c.path)
        if not isinstance(f, _File):
            return True
        if c.name == "open" and c.size:
            f.now, f.kept = b"", 0
        elif c.name == "write":
            f.now += c.data
        elif c.name == "truncate":
            f.now, f.kept = f.now[: c.size], min(f.kept, c.size)
        elif c.name == "fsync":
            f.durable, f.kept = f.now, len(f.now)
        return True

    def _name(self, path: str, change: dict[str, _File | bool | None]) -> None:
        self.pending.setdefault(os.path.dirname(path), []).append(change)
        _apply(self.current, change)

    def crash(self, where: Path, rng: random.Random) -> None:
        """Write down one of the disks that may be found afterwards."""
        luck = rng.choice((0.0, 0.5, 1.0))
        names = dict(self.names)
        for changes in self.pending.values():
            for change in changes:
                if rng.random() < luck:
                    _apply(names, change)
        for path in sorted(names):
            there = where / os.path.relpath(path, self.root)
            f = names[path]
            if not there.parent.is_dir():
                continue  # the folder's own name was lost
            if f is None:
                there.mkdir(exist_ok=True)
            else:
                there.write_bytes(_torn(f, rng))


def _apply(names: dict[str, Any], change: dict[str, Any]) -> None:
    for path, f in change.items():
        if f is False:
            names.pop(path, None)
        else:
            names[path] = f


def _torn(f: _File, rng: random.Random) -> bytes:
    if f.now == f.durable:
        return f.now
    more = f.now[f.kept :]
    more = more[: rng.randint(0, len(more))]
    # the length may arrive without the bytes; and what was cut may still be there
    return rng.choice((f.durable, f.now[: f.kept] + more, f.now[: f.kept] + bytes(len(more))))
