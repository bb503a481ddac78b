"""What the other processes of these tests do: each is killed, or races with another."""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from fedquilt.store import Busy, Journal, OnDisk, RunFolder
from fedquilt.types import Memory

# A server that has imported torch once and forks from there: a process starts in milliseconds.
CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.faults.processes"])


def start(work: Callable[..., None], *args: Any) -> BaseProcess:
    """A process that does this work; it ends with the test's own at the latest."""
    process = CONTEXT.Process(target=work, args=args, daemon=True)
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    """``kill -9``, and wait for the end."""
    process.kill()
    process.join(10)
    process.close()


def told(pipe: Connection) -> Any:
    """What the process says; it is not waited for in vain."""
    assert pipe.poll(20)
    return pipe.recv()


# ---- a run whose state says what it should be
def value(round: int) -> dict[str, Any]:
    """The state after a round: every part follows from the round."""
    return {
        "params": {"w": torch.full((40, 10), float(round)), "b": torch.arange(5) + round},
        "versions": {i: round for i in range(3)},
        "notes": {"stop": (round, float("nan")), "none": None},
    }


def journals(folder: Path) -> Mapping[str, Journal]:
    """The journals of such a run."""
    return {k: Journal(folder / f"{k}.jsonl") for k in ("rounds", "clients")}


def go_on(folder: RunFolder, kept: Mapping[str, Journal], done: int) -> None:
    """One more round after ``done``: its records, and its state."""
    kept["rounds"].append({"round": done + 1, "loss": 0.5})
    for i in range(3):
        kept["clients"].append({"round": done + 1, "client": i, "text": "ü" * done})
    folder.save(done + 1, value(done + 1), kept)


def memory(version: int) -> Memory:
    """A memory that says which it is."""
    return Memory({"w": torch.full((300,), float(version))}, {"version": version}) if version else Memory()


# ---- work
def save_forever(path: Path) -> None:
    """Resume, and save round after round until killed."""
    with RunFolder(path) as folder:
        kept = journals(path)
        found = folder.load(kept)
        done = found[0] if found else 0
        while True:
            go_on(folder, kept, done)
            done += 1


def remember_forever(path: Path, first: int) -> None:
    """Save version after version of a memory, until killed."""
    store = OnDisk(path, 0)
    version = first
    while True:
        store.save(7, version + 1, memory(version + 1), version)
        version += 1


def hold(path: Path, pipe: Connection) -> None:
    """Take the folder, say so, and keep it."""
    with RunFolder(path):
        pipe.send(0)
        time.sleep(30)


def hold_with_worker(path: Path, pipe: Connection) -> None:
    """Take the folder, and leave a forked worker behind that lives on after the holder."""
    with RunFolder(path):
        worker = os.fork()
        if worker == 0:
            time.sleep(30)
            os._exit(0)
        pipe.send(worker)
        time.sleep(30)


def race(path: Path, races: int, barrier: Any, pipe: Connection) -> None:
    """Open the folder together with another process, again and again; say what came of it."""
    for i in range(races):
        barrier.wait(10)
        try:
            folder = RunFolder(path / str(i))
        except Busy as e:
            folder = None
            pipe.send(("lost", e.pid))
        else:
            pipe.send(("won", mp.current_process().pid))
        barrier.wait(10)
        if folder is not None:
            folder.close()
