"""One process at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from .files import Busy, StoreError

TRIES = 30
PAUSE = 0.01  # seconds


class Lock:
    """The lock of a folder, taken at once or refused with :class:`Busy`.

    The file stays when the lock is released, since removing it would let two processes lock two
    files of one name.  It says who holds the lock, for the message to the other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._take()
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except BaseException:
            os.close(self.fd)
            raise
        _held.add(self)

    def _take(self) -> None:
        for _ in range(TRIES):
            try:
                return fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, host = self._holder()
                if pid is not None:
                    break
                # it has the lock but has not yet written its name, or the name is a dead holder's
                time.sleep(PAUSE)
            except OSError as e:
                raise StoreError(
                    f"{self.path} cannot be locked ({e.strerror}): choose a folder on a disk that knows locks"
                ) from e
        me = pid == os.getpid() and host == socket.gethostname()
        who = "this process" if me else f"process {pid} on {host}" if pid is not None else "another process"
        raise Busy(f"{self.path.parent} is in use by {who}: wait for it, end it, or choose another folder", pid, host)

    def _holder(self) -> tuple[int | None, str | None]:
        try:
            said = json.loads(os.pread(self.fd, 4096, 0))
            pid, host = int(said["pid"]), str(said["host"])
            if host == socket.gethostname():
                os.kill(pid, 0)  # no signal: only asks whether there is such a process
        except PermissionError:
            return pid, host
        except (ValueError, KeyError, TypeError, OSError):
            return None, None
        return pid, host

    @property
    def held(self) -> bool:
        """Does this process hold it?"""
        return self in _held

    def release(self) -> None:
        """Let others have it."""
        if self.held:
            _held.remove(self)
            os.ftruncate(self.fd, 0)
            os.close(self.fd)


_held: set[Lock] = set()


def _forked() -> None:
    # A worker made by fork shares the lock: it would hold it on after the death of the process that took it.
    while _held:
        os.close(_held.pop().fd)


os.register_at_fork(after_in_child=_forked)
