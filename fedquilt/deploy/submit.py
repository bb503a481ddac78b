"""Submit a Flower app, and again until its run is finished: Flower itself does not resume a run."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..schema import BadSetting
from .app import FILE

LONGEST = 120.0  # seconds that one call of Flower's command may take
SILENT = 60.0  # seconds without a word of the run's log after which it is asked whether the run goes on
_BEGUN = re.compile(r"started run (\d+)")
_WRONG = re.compile(r"^\s*fedquilt\.schema\.BadSetting: (.+)")  # as the last line of a traceback says it


class Unfinished(RuntimeError):
    """The run did not come to its end; what is kept of it goes on when it is submitted again."""


@dataclass(frozen=True)
class Persistence:
    """At most so many submissions; a SuperLink that does not answer is tried for ``patience`` seconds."""

    attempts: int = 10
    patience: float = 300.0
    pause: float = 2.0


def submit(folder: Path, connection: str, how: Persistence = Persistence(), tell: Callable[[str], None] = print) -> int:
    """Have the run done; how many submissions it took."""
    if not (folder / FILE).exists():
        raise BadSetting(f"{folder} holds no Flower app: make one with fedquilt deploy init {folder} METHOD")
    command, run = flwr(), ""
    for attempt in range(1, how.attempts + 1):
        run, wrong = _followed(command, folder, connection, how, tell)
        status = _ended(command, connection, run, how)
        if status == "finished:completed":
            return attempt
        if status == "finished:failed" and wrong:
            raise BadSetting(f"the server refused the run: {wrong}")
        if status == "finished:stopped":
            raise Unfinished(f"Flower's run {run} was stopped; to go on, submit it again")
        tell(f"Flower's run {run} ended as {status or 'unknown'}; what is kept goes on")
        time.sleep(how.pause)
    raise Unfinished(
        f"{how.attempts} submissions have not finished the run: `flwr log {run} {connection}` says what ended the last"
    )


def flwr() -> str:
    """Flower's command, of this Python if it has one."""
    beside = Path(sys.executable).parent / "flwr"
    found = str(beside) if beside.exists() else shutil.which("flwr")
    if found is None:
        raise BadSetting("Flower is not installed: pip install 'fedquilt[flower]'")
    return found


def _followed(
    command: str, folder: Path, connection: str, how: Persistence, tell: Callable[[str], None]
) -> tuple[str, str]:
    """Submit the app and pass its log on until that ends; Flower's name for the run, and which setting was refused."""
    end = time.monotonic() + how.patience
    while True:
        last, run, wrong = "", "", ""
        for line in _lines([command, "run", str(folder), connection, "--stream"]):
            if found := _BEGUN.search(line):
                run = found[1]
            elif not line and run and _status(command, connection, run).startswith("finished"):
                break
            if found := _WRONG.search(line):
                wrong = found[1]
            if line:
                last = line
                tell(line)
        if run:
            return run, wrong
        if time.monotonic() > end:
            raise Unfinished(f"Flower did not take the run in {how.patience:g} s: {last}")
        time.sleep(how.pause)


def _lines(words: list[str]) -> Iterator[str]:
    """What a command says, line by line; an empty one when it has been silent for long."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    said: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                said.put(line.rstrip())
        said.put(None)

    threading.Thread(target=listen, daemon=True).start()
    try:
        while True:
            try:
                line = said.get(timeout=SILENT)
            except queue.Empty:
                line = ""
            if line is None:
                return
            yield line
    finally:
        process.kill()
        process.wait()


def _ended(command: str, connection: str, run: str, how: Persistence) -> str:
    """How the run has ended; empty if the SuperLink does not know it, or is away for too long."""
    heard, pause = time.monotonic(), how.pause
    while time.monotonic() - heard < how.patience:
        status = _status(command, connection, run)
        if status == "unknown" or status.startswith("finished"):
            return status
        if status:
            heard = time.monotonic()
        time.sleep(pause)
        pause = min(10.0, 1.5 * pause)  # each look is a process that imports all of Flower
    return ""


def _status(command: str, connection: str, run: str) -> str:
    """What Flower says of a run; empty if it does not answer."""
    said, _ = _call([command, "list", connection, "--run-id", run, "--format", "json"])
    if said is None or not said.get("success"):
        return ""
    return str(next((r.get("status") for r in said.get("runs", ()) if str(r.get("run-id")) == run), "unknown"))


def _call(words: list[str]) -> tuple[dict[str, Any] | None, str]:
    """What a command says in JSON, or what is wrong."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return None, f"it did not answer in {LONGEST:g} s"
    start = done.stdout.find("{")
    try:
        said = json.loads(done.stdout[start:]) if start >= 0 else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return None, " ".join((done.stderr or done.stdout).split())[-400:]
    return said, str(said.get("error-message", ""))
