"""kill -9, resume: the same bits as the run that was left alone, client memories included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt.run import Run, resume, run

from ..laws.strategies import all_bits

RUN = Run(
    method={"name": "fedspu", "fraction": 0.5, "epochs": 1, "momentum": 0.9},
    clients=8,
    rounds=6,
    eval_every=2,
    stop="plateau:record_only=true",
    model="cnn:conv=4,8",
)

# In round 4 (the fourth), dies after the given number of that round's memories have been written.
VICTIM = """
import sys
from fedquilt.run import run
from tests.e2e.test_kill import RUN
from tests.victim import die_after

die_after(4, int(sys.argv[2]))
run(RUN, sys.argv[1])
"""


def contents(folder: Path) -> dict[str, bytes]:
    """What a run leaves behind, but for what says when and where it ran."""
    skip = {"run.json", "run.lock"}
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in skip
    }


@pytest.mark.parametrize("memories", [1, 3])
def test_a_run_killed_in_its_fourth_round_ends_as_if_left_alone(memories: int, tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    whole = run(RUN, alone)
    root = Path(__file__).parents[2]
    dead = subprocess.run(
        [sys.executable, "-c", VICTIM, str(killed), str(memories)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert dead.returncode == -signal.SIGKILL
    assert len((killed / "rounds.jsonl").read_text().splitlines()) == 3
    again = resume(killed)
    assert all_bits(again.params) == all_bits(whole.params)
    assert again.history.rounds == whole.history.rounds and again.history.scores == whole.history.scores
    assert again.history.clients == whole.history.clients
    assert contents(killed) == contents(alone)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(RUN, tmp_path / "r")
    before = contents(tmp_path / "r")
    seen: list[object] = []
    again = resume(tmp_path / "r", seen.append)
    assert not [s for s in seen if "notice" not in s]  # type: ignore[operator]
    assert contents(tmp_path / "r") == before and all_bits(again.params) == all_bits(first.params)


def test_a_run_that_goes_on_under_other_versions_says_so_then_and_afterwards(tmp_path: Path) -> None:
    """And ``run.json`` keeps what its earlier rounds were made with."""
    short = replace(RUN, rounds=1, eval_every=0)
    run(short, tmp_path / "r")
    said = json.loads((tmp_path / "r" / "run.json").read_text())
    (tmp_path / "r" / "run.json").write_text(json.dumps(said | {"versions": said["versions"] | {"torch": "2.0.0"}}))
    seen: list[Any] = []
    run(replace(short, rounds=2), tmp_path / "r", seen.append, resume=True)
    notices = [s["notice"] for s in seen if "notice" in s]
    assert notices == [f"versions: torch was 2.0.0 and is {torch.__version__}: bits may differ from here on"]
    said = json.loads((tmp_path / "r" / "run.json").read_text())
    assert [b["versions"]["torch"] for b in said["before"]] == ["2.0.0"]
    run(
        replace(short, rounds=3), tmp_path / "r", seen.append, resume=True
    )  # as it is now: nothing to say, nothing lost
    again = json.loads((tmp_path / "r" / "run.json").read_text())
    assert again["before"] == said["before"] and [s["notice"] for s in seen if "notice" in s] == notices
    run(replace(short, rounds=4, engine="processes:workers=1"), tmp_path / "r", resume=True)
    again = json.loads((tmp_path / "r" / "run.json").read_text())
    assert [b["engine"]["engine"] for b in again["before"]] == ["serial", "serial"]


def test_a_folder_and_ram_give_the_same_run(tmp_path: Path) -> None:
    a, b = run(RUN), run(RUN, tmp_path / "r")
    assert all_bits(a.params) == all_bits(b.params)
    assert (a.history.rounds, a.history.clients, a.history.scores) == (
        b.history.rounds,
        b.history.clients,
        b.history.scores,
    )
