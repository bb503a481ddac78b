"""The contestants' processes: started, asked one at a time, ended whatever happens."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

NEEDS = {"flower": ("flwr", "ray"), "pfl": ("pfl",), "fedjax": ("fedjax", "jax")}
HERE = Path(__file__).parents[1]
PATIENCE = 900.0  # seconds, for one answer


def needs(name: str) -> tuple[str, ...]:
    """The packages of a peer."""
    return NEEDS.get(name.partition("-")[0], ())


def installed(name: str) -> bool:
    """Are they there?"""
    return all(find_spec(p) for p in needs(name))


class Stage:
    """Use it in a ``with`` statement.  Who fails or does not answer is out; why stands in its answer."""

    def __init__(self, folder: Path, names: list[str], cores: int) -> None:
        self.folder, self.names, self.cores = folder, names, cores
        self.there: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> dict[str, Any]:
        """Start one, and wait until it is ready."""
        log = (self.folder / f"{name.replace(':', '-')}.log").open("w")
        paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        more = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if name.startswith("fedquilt") or name == "loop":
            more["OMP_NUM_THREADS"] = "1"
        env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | more
        words = [sys.executable, "-m", "speed.contest", name, str(self.folder), str(self.cores)]
        began = time.perf_counter()
        self.there[name] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env, start_new_session=True
        )
        log.close()
        return self._heard(name) | {"took": time.perf_counter() - began}

    def ask(self, name: str, words: str) -> dict[str, Any]:
        """Its answer."""
        pipe = self.there[name].stdin
        assert pipe is not None
        try:
            pipe.write(words + "\n")
            pipe.flush()
        except BrokenPipeError:
            return self._out(name, "it ended")
        return self._heard(name)

    def _heard(self, name: str) -> dict[str, Any]:
        pipe = self.there[name].stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        line = pipe.readline() if ready else ""
        if not line:
            log = (self.folder / f"{name.replace(':', '-')}.log").read_text().strip().splitlines()
            return self._out(name, (log or ["it ended"])[-1][:200] if ready else f"no answer in {PATIENCE:g} s")
        said: dict[str, Any] = json.loads(line)
        return self._out(name, said["error"]) if "error" in said else said

    def _out(self, name: str, why: str) -> dict[str, Any]:
        self._end(self.there.pop(name))
        return {"error": why}

    def memory(self, name: str) -> int:
        """Bytes that it holds now with all its processes; pages that they share are counted once for each."""
        return sum(p.memory_info().rss for p in _family(self.there[name].pid))

    def _end(self, process: subprocess.Popen[str]) -> None:
        family = _family(process.pid)  # those that this process has started, and no others
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for p in family:
            if p.is_running():
                p.kill()
        if process.stdout:
            process.stdout.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        for process in self.there.values():
            self._end(process)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
