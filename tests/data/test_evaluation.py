"""Who is scored, when, and what that costs: every client, every k rounds; unseen clients before and after adapting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

import fedquilt
from fedquilt.cli import main
from fedquilt.conduct import conduct
from fedquilt.drive.score import score
from fedquilt.drive.site import trainer
from fedquilt.fit import SGD
from fedquilt.meter import Usage
from fedquilt.methods import METHODS
from fedquilt.prepare import prepare
from fedquilt.run import Run

FAST = {"epochs": 1, "fraction": 0.2}
RUN = Run(method={"name": "fedavg", **FAST}, clients=10, rounds=5, eval_every=2, model="mlp")


def test_all_clients_are_scored_every_k_rounds_whether_they_were_selected_or_not() -> None:
    done = conduct(RUN, None, None, False)
    scores = done.history.scores
    assert sorted({r["round"] for r in scores}) == [0, 2, 4, 5], "first, every second, last"
    for round in (0, 2, 4, 5):
        for split in ("val", "test"):
            at = [r for r in scores if r["round"] == round and r["split"] == split]
            assert [r["client"] for r in at if r["model"] == "served"] == list(range(10))
            assert len([r for r in at if r["model"] == "global"]) == 1
    selected = {c for r in done.history.rounds for c in r["asked"]}
    assert len(selected) < 10, "somebody was never asked"
    last = [r for r in scores if r["round"] == 5 and r["split"] == "test" and r["model"] == "served"]
    assert done.figures()["scores"]["test"]["mean"] == pytest.approx(fmean(r["accuracy"] for r in last))


def test_scoring_changes_nothing_and_never_is_only_at_the_ends() -> None:
    often, never = (conduct(replace(RUN, eval_every=k), None, None, False) for k in (1, 0))
    assert often.history.rounds == never.history.rounds and often.history.clients == never.history.clients
    assert sorted({r["round"] for r in never.history.scores}) == [0, 5]
    kept = [r for r in often.history.scores if r["round"] in (0, 5)]
    assert kept == never.history.scores


class Counting:
    """An engine that adds up what it does."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.usage = engine, Usage()

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        done = self.engine.run(jobs)
        self.usage += sum((d.usage for d in done), Usage())
        return list(done)


@pytest.mark.parametrize("method", ["fedavg", "fedspu", "heterofl"])
def test_at_the_defaults_scoring_takes_less_than_the_training_between(method: str) -> None:
    run = Run(method=method)
    made = prepare(run)
    made.here.engine = counting = Counting(made.here.engine)
    now = made.sim.begin()
    score(made.sim, now.state, made.data.clients)
    scored, counting.usage = counting.usage, Usage()
    for _ in range(2):
        now, _ = made.sim.round(now)
    a_round = counting.usage.flops / 2
    assert scored.flops < 0.5 * run.eval_every * a_round and scored.steps == 0


def test_unseen_clients_never_train_and_are_scored_before_and_after_adapting() -> None:
    done = fedquilt.run(replace(RUN, unseen=0.3, rounds=6, method={"name": "fedavg", "epochs": 3, "fraction": 0.5}))
    unseen = done.record["data"]["unseen"]
    assert len(unseen) == 3
    assert not {c for r in done.history.rounds for c in r["asked"]} & set(unseen)
    last = [r for r in done.history.scores if r["round"] == 6 and r["split"] == "test"]
    mine = [r for r in last if r.get("population") == "unseen"]
    theirs = {m: {r["client"]: r["accuracy"] for r in mine if r["model"] == m} for m in ("served", "adapted")}
    assert sorted(theirs["served"]) == sorted(theirs["adapted"]) == unseen
    said = done.figures()["scores"]["test"]
    assert said["clients"] == 7, "they are not among the others"
    assert said["unseen"]["before"] == pytest.approx(fmean(theirs["served"].values()))
    assert said["unseen"]["after"] == pytest.approx(fmean(theirs["adapted"].values()))
    assert said["unseen"]["after"] > said["unseen"]["before"], "ten classes, of which each of them has a few"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_how_a_model_is_adapted(method: str) -> None:
    said = trainer(METHODS[method]().local)
    assert isinstance(said.optim, SGD) and said.batch  # type: ignore[attr-defined]
    assert hasattr(said, "epochs") != hasattr(said, "steps")


INSIDE = {  # methods whose training is inside another local, or none: it has settings of its own
    "scaffold": {"epochs": 1},
    "ditto": {"epochs": 1},
    "fedcom": {"epochs": 1},
    "fedrep": {"head_epochs": 1},
    "perfedavg": {"steps": 2},
    "pfedme": {"steps": 10},
}


@pytest.mark.parametrize("method", INSIDE)
def test_adapting_goes_by_the_settings_of_a_training_inside_another_local(method: str) -> None:
    def far(lr: float) -> float:
        settings = {"name": method, "lr": lr, **INSIDE[method]}
        done = fedquilt.run(replace(RUN, unseen=0.3, rounds=1, method=settings))
        said = done.figures()["scores"]["test"]["unseen"]
        return abs(float(said["after"] - said["before"]))

    assert far(0.0) == 0 < far(0.3)


def test_the_table_of_a_run_tells_of_unseen_clients(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "fedavg", "--clients", "10", "--unseen", "0.3", "--rounds", "1", "--epochs", "1", "--model", "mlp"])
    said = capsys.readouterr().out
    assert "3 unseen clients, before adapting" in said and "3 unseen clients, after adapting" in said


@pytest.mark.parametrize(("share", "unseen"), [(0.01, 1), (0.1, 1), (0.25, 3), (0.9, 9)])
def test_so_many_are_unseen(share: float, unseen: int) -> None:
    assert len(prepare(replace(RUN, unseen=share)).data.unseen) == unseen


@pytest.mark.parametrize(
    ("more", "say"),
    [
        ({"unseen": 0.99}, "of 10 clients 10 would be unseen, so none would train"),
        ({"unseen": 1.0}, "unseen is a share of the clients, from 0 to below 1, not 1.0"),
        ({"unseen": -0.1}, "unseen is a share of the clients"),
        ({"eval_every": -1}, "eval_every is at least 0, not -1"),
    ],
)
def test_what_cannot_be_scored_is_refused(more: dict[str, Any], say: str) -> None:
    with pytest.raises(ValueError, match=say):
        prepare(replace(RUN, **more))
