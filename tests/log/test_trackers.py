"""Trackers are told what the journals say: each round once, in order, by one option."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedquilt
from fedquilt import log
from fedquilt.history import Result, summary
from fedquilt.run import Run

from ..cli.test_run import interrupt_after
from ..cli.world import TINY, Call, caller, sentence
from .events import pieces, scalars, texts

FOUR = [
    *("4" if before == "--rounds" else word for before, word in zip(["", *TINY], TINY, strict=False)),
    "--eval-every",
    "2",
]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    return caller(capsys)


def lines(path: str) -> Iterator[dict[str, object]]:
    return (json.loads(line) for line in Path(path).read_text().splitlines())


def test_tensorboard_is_told_what_the_journals_say(call: Call) -> None:
    assert call("run", "fedspu", *FOUR, "--out", "r", "--track", "tensorboard", "--quiet").code == 0
    told = scalars(Path("r"))
    for r in lines("r/rounds.jsonl"):
        for name, key in (("train/loss", "loss"), ("cost/up", "up"), ("clock/virtual_seconds", "clock")):
            assert dict(told[name])[r["round"]] == pytest.approx(r[key], rel=1e-6)
    assert [step for step, _ in told["train/loss"]] == [1, 2, 3, 4]
    scores = list(lines("r/scores.jsonl"))
    for step, value in told["test/accuracy"]:
        assert value == pytest.approx(summary(s for s in scores if s["round"] == step)["test"]["mean"], rel=1e-6)
    assert [step for step, _ in told["test/accuracy"]] == [0, 2, 4]
    assert {"val/accuracy", "test/accuracy_tier_0.2", "test/accuracy_worst_tenth"} <= told.keys()
    assert "method.fraction" in texts(Path("r")) and "| clients | `5` |" in texts(Path("r"))


def test_a_run_that_is_resumed_goes_on_in_the_same_charts(call: Call) -> None:
    words = ["run", "fedavg", *FOUR, "--track", "tensorboard"]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(3, patch)
        assert call(*words, "--out", "r").code == 130
    assert [step for step, _ in scalars(Path("r"))["train/loss"]] == [1, 2, 3]
    assert call("resume", "r", "--track", "tensorboard", "--quiet").code == 0
    assert call(*words, "--out", "whole", "--quiet").code == 0
    assert scalars(Path("r")) == scalars(Path("whole"))


def test_a_finished_run_may_be_told_later_and_is_told_once(call: Call) -> None:
    words = ["run", "fedavg", *TINY, "--out", "r", "--quiet"]
    assert call(*words).code == 0 and not Path("r/tensorboard").exists()
    for _ in range(2):
        assert call(*words, "--track", "tensorboard").code == 0
        assert [step for step, _ in scalars(Path("r"))["train/loss"]] == [1, 2]


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_each_run_of_a_comparison_is_told(jobs: str, call: Call) -> None:
    said = call("compare", "fedspu", *TINY, "--out", "c", "--jobs", jobs, "--json", "--track", "tensorboard")
    assert said.code == 0 and len(said.json["runs"]) == 3
    for run in said.json["runs"]:
        assert [step for step, _ in scalars(Path("c") / run["folder"])["train/loss"]] == [1, 2]


def test_a_tracker_that_fails_costs_no_run(call: Call) -> None:
    Path("r").mkdir()
    Path("r/tensorboard").write_text("in the way")
    said = call("run", "fedavg", *TINY, "--out", "r", "--json", "--track", "tensorboard")
    assert said.code == 0 and said.json["rounds"] == 2
    assert said.err.count("\n") == 1 and "tensorboard is told no more of r, which goes on" in said.err


def test_from_python_by_one_word(tmp_path: Path) -> None:
    with fedquilt.tracked(["tensorboard"], tmp_path / "r") as watch:
        run = Run(method={"name": "fedavg", "epochs": 1}, clients=4, rounds=1, model="mlp:hidden=4")
        result = fedquilt.run(run, tmp_path / "r", watch)
    assert isinstance(result, Result) and len(scalars(tmp_path / "r")["test/accuracy"]) == 2


def test_what_cannot_be_told_is_refused_before_any_work(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'tensorboard'" in sentence(call("run", "fedavg", *TINY, "--track", "tensorbord"))
    monkeypatch.setattr(log, "find_spec", lambda name: None)
    for name in log.NEEDS:
        said = sentence(call("run", "fedavg", *TINY, "--track", name))
        assert f"--track {name} needs" in said and f"pip install 'fedquilt[{name}]'" in said
    assert not Path("runs").exists()


def test_a_run_in_the_way_is_not_told(call: Call) -> None:
    assert call("run", "fedavg", *TINY, "--out", "r", "--quiet").code == 0
    assert "differ" in sentence(call("run", "local", *TINY, "--out", "r", "--track", "tensorboard"))
    assert not Path("r/tensorboard").exists()


# ---- heavy: `make test-all` installs what these need
def fedquilt_says(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "fedquilt", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_mlflow_keeps_it_in_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    fedquilt_says("run", "fedspu", *FOUR, "--out", "r", "--track", "mlflow", "--quiet")
    fedquilt_says("run", "fedspu", *FOUR, "--out", "r", "--track", "mlflow", "--quiet")
    base = sqlite3.connect("mlflow.db")
    assert base.execute("select name, status from runs").fetchall() == [("r", "FINISHED")]
    told = base.execute("select step, value from metrics where key = 'train/loss' order by step").fetchall()
    assert told == [(r["round"], pytest.approx(r["loss"])) for r in lines("r/rounds.jsonl")]
    assert base.execute("select value from params where key = 'method.name'").fetchall() == [("fedspu",)]
    base.close()


@pytest.mark.slow
def test_weights_and_biases_keeps_it_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    fedquilt_says("run", "fedspu", *FOUR, "--out", "r", "--track", "wandb", "--quiet")
    (path,) = Path("r/wandb").glob("offline-run-*/*.wandb")
    records = [Record.FromString(data) for data in pieces(path.read_bytes())]
    told = [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    assert {t["round"]: t["train/loss"] for t in told if "train/loss" in t} == {
        r["round"]: pytest.approx(r["loss"]) for r in lines("r/rounds.jsonl")
    }
    (run,) = [r.run for r in records if r.HasField("run")][:1]
    assert run.display_name == "r" and "method.fraction" in {u.key for u in run.config.update}
