"""Ctrl-C, as a terminal sends it: to all processes of the command.  What is left goes on, and it is said how."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .world import Call

ROOT = Path(__file__).parents[2]
SMALL = "--clients 5 --epochs 1 --fraction 0.4 --model mlp:hidden=8 --eval-every 0"
LONG = "--rounds 100000"


def rounds(folder: Path) -> int:
    """How many rounds the runs in a folder have done, all together."""
    return sum(p.read_bytes().count(b"\n") for p in folder.rglob("rounds.jsonl"))


def interrupted(command: str, folder: Path) -> str:
    """What a command says that is interrupted once it has done two rounds more."""
    begun = rounds(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedquilt", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what starts the tests may ignore it
    )
    try:
        while rounds(folder) < begun + 2 and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130 and not out, err
    assert "Traceback" not in err and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("engine", ["serial", pytest.param("processes:workers=2", marks=pytest.mark.slow)])
def test_a_run_goes_on_where_it_was_interrupted(engine: str, call: Call) -> None:
    said = interrupted(f"run fedspu {SMALL} {LONG} --engine {engine} --out r", Path("r"))
    found = re.fullmatch(r"fedquilt: stopped after round (\d+) of 100000; go on with: fedquilt resume r\n", said)
    assert found and int(found[1]) in (rounds(Path("r")), rounds(Path("r")) - 1), said  # that one was not yet saved
    done = int(found[1])
    some = f"run fedspu {SMALL} --rounds {done + 2} --json"  # more rounds or fewer: it is the same run
    rest, whole = call(f"{some} --out r").json, call(f"{some} --out whole").json
    assert rest["rounds"] == done + 2 and rest["scores"] == whole["scores"] and rest["down"] == whole["down"]
    assert Path("r/rounds.jsonl").read_bytes() == Path("whole/rounds.jsonl").read_bytes()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_comparison_goes_on_where_it_was_interrupted(jobs: int, call: Call) -> None:
    command = f"compare local fedavg {SMALL} {LONG} --no-baselines --jobs {jobs} --out c"
    said = interrupted(command, Path("c"))
    assert "stopped with 0 of 2 runs finished; go on with: fedquilt resume c" in said
    assert json.loads(Path("c/comparison.json").read_text())["finished"] is False
    interrupted(f"resume c --jobs {jobs}", Path("c"))
