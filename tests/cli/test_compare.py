"""Comparisons: a grid of runs, each in its folder, none repeated; and what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedquilt
from fedquilt import conduct, jobs
from fedquilt.cells import against
from fedquilt.compare import compare, study_of
from fedquilt.drive import sim
from fedquilt.jobs import Task, do_all
from fedquilt.run import Run
from fedquilt.store import Busy
from fedquilt.store.lock import Lock
from fedquilt.study import Study

from .world import TINY, Call, sentence

ROOT = Path(fedquilt.__file__).parents[1]
GRID = ["compare", "fedspu", *TINY, "--seeds", "2", "--partition", "iid", "--partition", "dirichlet:0.5"]


def results(folder: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in folder.glob("runs/*/result.json")}


def test_a_comparison_is_a_grid_with_local_and_finetuned_fedavg_beside(call: Call) -> None:
    said = call(*GRID, "--out", "c", "--json")
    assert said.code == 0 and not said.err
    record = said.json
    assert record == {"folder": "c", **json.loads(Path("c/comparison.json").read_text())}
    assert record["finished"] and len(record["runs"]) == 3 * 2 * 2 == len(results(Path("c")))
    assert [(c["partition"], c["shared"]) for c in record["cells"]] == [(p, p) for p in ("iid", "dirichlet:0.5")]
    for cell in record["cells"]:
        assert [r["label"] for r in cell["rows"]] == ["local", "fedavg finetune=1", "fedspu"]
        assert cell["local"] == "local" and cell["finetuned"] == "fedavg finetune=1"
        assert len(cell["pairs"]) == 3 and all(p["pairs"] == 10 for p in cell["pairs"])
        assert set(cell["whose"]) == {"population", "model", "moment", "pick", "mean"}
        for row in cell["rows"]:
            assert row["interval"][0] <= row["mean"] <= row["interval"][1] and len(row["by_seed"]) == 2
            assert row["mean"] == pytest.approx(sum(row["by_seed"]) / 2)


def test_all_methods_of_a_comparison_meet_the_same_data_and_cohorts(call: Call) -> None:
    assert call("compare", "fedspu", *TINY, "--out", "c", "--quiet").code == 0
    folders = [p.parent for p in Path("c").glob("runs/*/result.json")]
    rounds = [[json.loads(line)["asked"] for line in (f / "rounds.jsonl").read_text().splitlines()] for f in folders]
    prints = {json.loads((f / "run.json").read_text())["data"]["fingerprint"] for f in folders}
    assert len(folders) == 3 and len(prints) == 1 and rounds[0] == rounds[1] == rounds[2]


def test_the_table_says_how_much_better_for_how_many_and_whose_figures_they_are(call: Call) -> None:
    said = call("compare", "fedspu", *TINY)
    for words in (
        "less local",
        "less fedavg finetune=1",
        "better for",
        "worst tenth",
        "all 5 clients",
        "Wilcoxon",
        "digits, dirichlet:0.3:",
    ):
        assert words in said.out
    folder = said.out.split("kept in ")[1].split()[0]
    assert folder.startswith("runs/compare-")
    shown = call("show", folder)
    assert shown.out and shown.out in said.out


def test_a_finished_run_is_never_repeated_and_a_comparison_can_be_extended(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", "fedspu", *TINY, "--out", "c", "--json"]
    first = call(*words).json
    before = results(Path("c"))
    with monkeypatch.context() as patch:
        patch.setattr(sim.Simulator, "round", None)
        assert call(*words).json == first
    more = call(*words[:1], "heterofl", *words[1:]).json
    assert len(more["runs"]) == 4
    assert before.items() <= results(Path("c")).items(), "the three are as they were"


def test_ctrl_c_leaves_a_comparison_that_goes_on_and_says_how(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call("compare", "fedspu", *TINY, "--out", "whole", "--json").json
    real, left = sim.Simulator.round, [3]

    def round(self: sim.Simulator, now: sim.Now) -> object:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(sim.Simulator, "round", round)
        said = call("compare", "fedspu", *TINY, "--out", "c")
    assert said.code == 130
    assert "stopped with 1 of 3 runs finished; go on with: fedquilt resume c" in said.err
    rest = call("resume", "c", "--json")
    assert rest.code == 0 and rest.json["cells"] == whole["cells"]


def test_a_run_that_fails_costs_itself_and_is_told(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    real = conduct.conduct

    def conducted(run: Run, *more: Any, **given: Any) -> object:
        if run.method["name"] == "heterofl":  # type: ignore[index]
            raise RuntimeError("out of luck")
        return real(run, *more, **given)

    with monkeypatch.context() as patch:
        patch.setattr(conduct, "conduct", conducted)
        said = call("compare", "fedspu", "heterofl", *TINY, "--out", "c")
    assert said.code == 1 and "1 of 4 runs failed" in said.err and "out of luck" in said.err
    assert "fedspu" in said.out and "resume c" in said.err
    assert call("resume", "c").code == 0
    assert study_of(Path("c")).methods.keys() == {"local", "fedavg finetune=1", "fedspu", "heterofl"}


def test_two_jobs_give_the_same_comparison_as_one_and_say_the_same_records(tmp_path: Path) -> None:
    study = Study.of({"methods": ["fedspu", "local"], "clients": 5, "rounds": 2, "epochs": 1, "model": "mlp:hidden=8"})
    told: dict[int, list[str]] = {1: [], 2: []}
    for n in (1, 2):
        done = compare(study, tmp_path / str(n), n, lambda e, r, n=n: told[n].append(f"{e and e.label} {sorted(r)}"))  # type: ignore[misc]
        assert not done.failed
    one, two = (json.loads((tmp_path / n / "comparison.json").read_text()) for n in "12")
    assert one["cells"] == two["cells"] and one["runs"] == two["runs"]
    assert sorted(told[1]) == sorted(told[2]) and told[1]


def test_a_worker_that_dies_costs_its_run_and_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(clients=5, rounds=1, model="mlp:hidden=8", method={"name": "local", "epochs": 1})
    real, started = jobs._start, []

    def start() -> subprocess.Popen[str]:
        started.append(real())
        if len(started) == 1:
            started[0].kill()
        return started[-1]

    monkeypatch.setattr(jobs, "_start", start)
    failed = do_all([Task(run, tmp_path / str(i)) for i in range(3)], 2)
    assert len(started) == 3 and [*failed.values()] == ["its process ended with code -9"]
    assert len(list(tmp_path.glob("*/result.json"))) == 2
    assert all(p.poll() is not None for p in started), "nobody is left"


def test_a_comparison_that_is_killed_is_resumed_to_the_same_figures(call: Call, tmp_path: Path) -> None:
    longer = [w if w != "2" else "8" for w in TINY]
    words = ["compare", "fedspu", *longer, "--eval-every", "1", "--no-baselines", "--seeds", "3", "--out", "c"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "fedquilt", *words, "--jobs", "2", "--quiet"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    until = time.monotonic() + 60
    while not results(tmp_path / "c") and time.monotonic() < until:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = results(tmp_path / "c")
    assert 1 <= len(before) < 3 and not json.loads(Path("c/comparison.json").read_text())["finished"]
    while any(map(busy, Path("c/runs").iterdir())) and time.monotonic() < until:
        time.sleep(0.01)  # the workers see that nobody listens, and end
    rest = call("resume", "c", "--json")
    assert rest.code == 0 and before.items() <= results(Path("c")).items()
    alone = call(*(w if w != "c" else "alone" for w in words), "--json")
    assert alone.json["cells"] == rest.json["cells"]


def busy(folder: Path) -> bool:
    """Does a process hold the run in this folder?"""
    try:
        Lock(folder / "run.lock").release()
    except Busy:
        return True
    return False


def test_a_pair_is_seen_from_either_side() -> None:
    pair = {"a": "x", "b": "y", "difference": 0.2, "interval": [0.1, 0.3], "better": 0.7, "worse": 0.2, "p": 0.01}
    cell = {"pairs": [pair]}
    turned = against(cell, "y", "x")
    assert against(cell, "x", "y") == pair and turned is not None
    assert (turned["difference"], turned["interval"], turned["better"]) == (-0.2, [-0.3, -0.1], 0.2)
    assert against(cell, "x", "z") is None


def test_bare_run_is_the_first_comparison(call: Call) -> None:
    told = call("run", "--dry-run", "--json").json
    assert [r["label"] for r in told] == ["local", "fedavg", "fedavg finetune=2", "fedspu", "heterofl"]
    said = call("run", "--clients", "5", "--rounds", "1", "--model", "mlp:hidden=8", "--jobs", "1")
    assert said.code == 0 and "better for" in said.out and said.out.count("fedspu") >= 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("compare fedspu fedspu", "names fedspu twice"),
        ("compare fedspu --lrr 1", "did you mean '--lr'"),
        ("compare fedspu --seeds some", "seeds is"),
        ("compare fedspu --seeds 0", "seeds is how many"),
        ("compare fedspu --data digits --data digits", "says the same twice"),
        ("compare fedspu --tuned nowhere", "holds no finished search"),
        ("compare fedspu --seeds 9999 --partition iid --partition dirichlet:1", "more than the 10,000"),
        ("compare fedsup", "did you mean 'fedspu'"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(words: str, told: str, call: Call) -> None:
    assert told in sentence(call(words))
    assert not Path("runs").exists()
