"""A contestant is a process: it says ``ready``, then answers ``round N`` and ``score`` with a line of JSON each.

python -m speed.contest NAME FOLDER [--cores N]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol


class Contestant(Protocol):
    """``round`` gives the steps and samples that were done, ``score`` losses of the model on everybody's test data.

    Where ``steps`` cannot be told it is None.
    """

    def round(self, n: int) -> tuple[int | None, int | None]: ...
    def score(self) -> dict[str, float]: ...


def serve(make: Callable[[], Contestant]) -> None:
    """Answer until the last line, or until something fails: that is told too."""
    out = _voice()
    try:
        thing = make()
        _say(out, {"ready": True, "version": getattr(thing, "version", "")})
        for line in sys.stdin:
            word, *more = line.split()
            began, cpu = time.perf_counter(), time.process_time()
            said: dict[str, Any] = {}
            if word == "round":
                said["steps"], said["samples"] = thing.round(int(more[0]))
            else:
                said |= thing.score()
            _say(out, said | {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu})
    except Exception as error:
        _say(out, {"error": f"{type(error).__name__}: {error}"[:300]})
        raise


def _voice() -> IO[str]:
    """The standard output for answers alone: what libraries print goes to the log."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _say(out: IO[str], what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


WHERE = {"fedquilt": "ours", "author": "plain", "loop": "plain", "flower": "peer_flower", "pfl": "peer_pfl",
         "fedjax": "peer_fedjax"}  # fmt: skip


def main() -> None:
    name, folder, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    module = import_module(f"speed.{WHERE[name.partition(':')[0].partition('-')[0]]}")
    module.enter(name, folder, cores)


if __name__ == "__main__":
    main()
