"""Bytes on a disk: what can go wrong with them, and how they are written so that they last."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".tmp"


class StoreError(Exception):
    """Something is wrong with what is stored; the text says what, where, and what to do."""


class Busy(StoreError):
    """Another process holds the folder: ``pid`` on ``host``, where they are known."""

    def __init__(self, text: str, pid: int | None = None, host: str | None = None) -> None:
        super().__init__(text)
        self.pid, self.host = pid, host


class Corrupt(StoreError):
    """What is on the disk is not what was written."""


class Missing(StoreError):
    """What is asked for was never stored, or is no longer there."""


class Unsaved(StoreError):
    """The disk took no more; what was stored before is untouched."""


# ---- writing
def pour(fd: int, data: bytes | memoryview) -> None:
    """Write all of it: one call may write less than it was given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write(path: Path, data: bytes, durable: bool = True) -> None:
    """A file with these bytes; after a crash in the middle it may hold any part of them."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        pour(fd, data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes, durable: bool = True) -> None:
    """A file with these bytes in the place of the old one; after a crash it is one of the two, whole."""
    temporary = path.with_name(path.name + TEMPORARY)
    write(temporary, data, durable)
    os.replace(temporary, path)
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: a file is lost with its name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path, durable: bool = True) -> None:
    """A folder, with those above it; its name and theirs are durable, whoever made them."""
    if path.parent != path and not path.parent.is_dir():
        make_folder(path.parent, durable)
    path.mkdir(exist_ok=True)
    if durable:
        with suppress(PermissionError):  # a folder of others, which this user may pass but not read
            sync_folder(path.parent)


@contextmanager
def saving(what: str) -> Iterator[None]:
    """Say of an error of the disk what it has prevented: ``what`` is a sentence without its end."""
    try:
        yield
    except OSError as e:
        hint = "free some space" if e.errno in (errno.ENOSPC, errno.EDQUOT) else "see to the disk"
        raise Unsaved(f"{what}: {e.strerror or e}; what was saved before is untouched: {hint} and resume") from e


# ---- reading
def read(path: Path) -> bytes:
    """All bytes of a file that should be there."""
    try:
        return path.read_bytes()
    except OSError as e:
        # a sector that cannot be read is damage; a file that this user may not read is not
        if e.errno in (errno.ENOENT, errno.EIO):
            raise Corrupt(f"{path} cannot be read ({e.strerror})") from e
        raise StoreError(f"{path} cannot be read: {e.strerror}; see to the permissions and the disk") from e
