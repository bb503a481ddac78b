"""The local line from an app's short process to its node's worker, which is started where there is none.

A worker belongs to a node, a run and a version of the library: its socket's name is a hash of these.  It dies with
its node, or when nobody has asked for a while.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import psutil

from ... import __version__
from .letter import PROTOCOL, Broken, Letter, receive, send

LONGEST = 100  # bytes of a socket's name; systems take 103 at least
START = 120.0  # seconds that a worker may take to listen
NODES = ("flower-supernode", "flower-superexec")  # what a worker lives as long as: the first that is an ancestor


def ask(about: Mapping[str, Any], letter: Letter, patience: float) -> Letter:
    """What the worker of this node and run answers, within so many seconds."""
    end = time.monotonic() + patience
    place = place_of(about)
    with line_to(place, about, end) as line:
        line.settimeout(max(0.1, end - time.monotonic()))
        send(line, letter)
        told = receive(line)
    if "error" in told.facts:
        raise RuntimeError(str(told.facts["error"]))
    return told


def place_of(about: Mapping[str, Any]) -> Path:
    """The socket of the worker; its folder is this user's alone."""
    folder = Path(tempfile.gettempdir()) / f"fedquilt-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone: remove it, or set TMPDIR to a folder that is")
    said = json.dumps([PROTOCOL, __version__, str(Path(__file__)), about], sort_keys=True)
    place = folder / f"{blake2b(said.encode(), digest_size=8).hexdigest()}.sock"
    if len(os.fsencode(place)) > LONGEST:
        raise OSError(f"{place} is too long a name for a socket: set TMPDIR to a folder with a shorter one")
    return place


@contextmanager
def line_to(place: Path, about: Mapping[str, Any], end: float) -> Iterator[socket.socket]:
    """A connection to the worker, who is started if nobody listens."""
    line = _connected(place)
    if line is None:
        with open(place.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two that start at once, the second finds the first one's worker
            line = _connected(place) or _started(place, about, end)
    with line:
        yield line


def _connected(place: Path) -> socket.socket | None:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(place))
    except (FileNotFoundError, ConnectionRefusedError):
        line.close()
        return None
    return line


def _started(place: Path, about: Mapping[str, Any], end: float) -> socket.socket:
    place.unlink(missing_ok=True)
    home = Path(about["home"])
    home.mkdir(parents=True, exist_ok=True)
    pid, born = node()
    command = [sys.executable, "-P", "-m", "fedquilt.drive.flower.worker", str(place), str(pid), repr(born)]
    with open(home / "worker.log", "ab") as log:
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,  # it outlives this process
        )
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(about).encode())
    worker.stdin.close()
    until = min(end, time.monotonic() + START)
    while time.monotonic() < until:
        if (line := _connected(place)) is not None:
            worker.returncode = 0  # it is not waited for: it is nobody's child any more when this process ends
            return line
        if worker.poll() is not None:
            raise Broken(f"the node's worker ended at once (code {worker.returncode}): see {home / 'worker.log'}")
        time.sleep(0.02)
    worker.kill()
    worker.wait()
    raise Broken(f"the node's worker did not listen in time: see {home / 'worker.log'}")


def node() -> tuple[int, float]:
    """The process that the worker is to die with, and when that was born: the node that started this one."""
    parents = psutil.Process().parents()
    for name in NODES:
        for p in parents:
            try:
                words = p.cmdline()[:3]
            except psutil.Error:
                continue
            if any(Path(w).name == name for w in words):
                return p.pid, p.create_time()
    nearest = parents[0] if parents else psutil.Process()
    return nearest.pid, nearest.create_time()
