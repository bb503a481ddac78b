"""Independent runs in processes of one thread each; what they say comes back as lines of JSON.

A worker is ``python -m fedquilt.jobs``: it reads tasks on standard input and ends when that ends, so
it outlives nobody, not even a parent that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .run import Run

Told = Callable[[int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """A run and the folder that keeps it."""

    run: Run
    folder: Path


def do_all(tasks: Sequence[Task], jobs: int = 1, told: Told | None = None) -> dict[int, str]:
    """Do these runs, ``jobs`` at a time; why those failed that did.  ``told`` hears each one's place and records."""
    if jobs <= 1 or len(tasks) <= 1:
        return dict(_here(tasks, told))
    return _away(tasks, min(jobs, len(tasks)), told)


def _here(tasks: Sequence[Task], told: Told | None) -> Iterator[tuple[int, str]]:
    for i, task in enumerate(tasks):
        reason = do(task, None if told is None else lambda record, i=i: told(i, record))  # type: ignore[misc]
        if reason:
            yield i, reason
        if told:
            told(i, {"ended": reason or ""})


def do(task: Task, watch: Callable[[Mapping[str, Any]], None] | None) -> str | None:
    """Do or finish one run; why it failed, if it did."""
    from .conduct import conduct

    try:
        conduct(task.run, task.folder, watch, resume=True)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


# ---- the parent
Said = tuple[int, dict[str, Any] | None]  # by which worker; None: it has ended


class _Workers:
    """Worker processes and what they say, in the order in which they say it."""

    def __init__(self, n: int) -> None:
        self.said: queue.Queue[Said] = queue.Queue()
        self.at: dict[int, int] = {}  # the task of each worker that has one
        self.processes = [_start() for _ in range(n)]
        self.listeners = [self._listener(w) for w in range(n)]

    def _listener(self, w: int) -> threading.Thread:
        thread = threading.Thread(target=_listen, args=(w, self.processes[w], self.said), daemon=True)
        thread.start()
        return thread

    def give(self, w: int, i: int, task: Task) -> None:
        """A task for a worker."""
        self.at[w] = i
        stdin = self.processes[w].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: its listener says so
            stdin.write(json.dumps({"run": task.run.plain(), "folder": str(task.folder)}) + "\n")
            stdin.flush()

    def replace(self, w: int) -> int:
        """Another worker in the place of one that has ended; the code that it ended with."""
        code = self._end(w)
        self.processes[w] = _start()
        self.listeners[w] = self._listener(w)
        return code

    def _end(self, w: int) -> int:
        process = self.processes[w]
        process.kill()
        code = process.wait()
        self.listeners[w].join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        return code

    def end(self) -> None:
        """All of them."""
        for w in range(len(self.processes)):
            self._end(w)


def _away(tasks: Sequence[Task], jobs: int, told: Told | None) -> dict[int, str]:
    workers = _Workers(jobs)
    left = list(range(len(tasks)))
    failed: dict[int, str] = {}

    def give(w: int) -> None:
        if left:
            i = left.pop(0)
            workers.give(w, i, tasks[i])

    try:
        for w in range(jobs):
            give(w)
        while workers.at:
            w, record = workers.said.get()
            if record is None:
                i = workers.at.pop(w)
                failed[i] = f"its process ended with code {workers.replace(w)}"
                record = {"ended": failed[i]}
                give(w)
            elif "ended" in record:
                i = workers.at.pop(w)
                if record["ended"]:
                    failed[i] = record["ended"]
                give(w)
            else:
                i = workers.at[w]
            if told:
                told(i, record)
    finally:
        workers.end()
    return failed


def _start() -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedquilt.jobs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is the parent's
    )


def _listen(w: int, worker: subprocess.Popen[str], said: queue.Queue[Said]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        if not line.endswith("\n"):
            break  # it died in the middle of a word
        said.put((w, json.loads(line)))
    said.put((w, None))


# ---- the worker
def worker() -> None:
    """Do tasks until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not ours to say
    tasks: queue.Queue[str | None] = queue.Queue()
    busy = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            busy.set()
            tasks.put(line)
        if busy.is_set():
            os._exit(1)  # nobody waits for the rest; the run goes on from its last round one day
        tasks.put(None)

    def say(record: Mapping[str, Any]) -> None:
        out.write(json.dumps(record) + "\n")
        out.flush()

    threading.Thread(target=read, daemon=True).start()
    while line := tasks.get():
        asked = json.loads(line)
        reason = do(Task(Run.of(asked["run"]), Path(asked["folder"])), say)
        busy.clear()
        say({"ended": reason or ""})


if __name__ == "__main__":
    worker()
