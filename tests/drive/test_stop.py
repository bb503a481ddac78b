"""Early stopping: a part that any method takes, and one run that gives the figures with it and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedquilt.cover import Cover
from fedquilt.fleet import Device, Fleet
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.parts.schedule import Sync
from fedquilt.parts.stop import Plateau
from fedquilt.run import Run, run
from fedquilt.types import Reply, State

from ..laws.strategies import all_bits
from ..world import play, replace, small, world

FLEET = Fleet({i: Device() for i in range(4)}, dict.fromkeys(range(4), 10))


def reply(client: int, train: float, val: float) -> Reply:
    return Reply(client, 0, {}, Cover({}), 1.0, {"loss": train, "val_loss": val})


def learnt(stop: Plateau, *rounds: list[Reply]) -> list[Any]:
    """The note after each round."""
    note, out = None, []
    for t, replies in enumerate(rounds):
        note = stop.learn(note, State(t, {}), replies, FLEET)
        out.append(note)
    return out


def test_the_loss_is_mixed_of_training_and_validation() -> None:
    (note,) = learnt(Plateau(), [reply(0, 1.0, 2.0), reply(1, 0.0, 1.0)])
    assert note["loss"] == {0: pytest.approx(0.7 * 1 + 0.3 * 2), 1: pytest.approx(0.3)}
    assert learnt(Plateau(lam=0.0), [reply(0, 1.0, 2.0)])[0]["loss"] == {0: 2.0}
    for lam in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="lam is a share"):
            Plateau(lam)


def test_a_client_retires_when_its_loss_rises_against_its_last_participation() -> None:
    """Strictly, and whatever happened to others or in rounds in which it had no part."""
    notes = learnt(
        Plateau(),
        [reply(0, 1.0, 1.0), reply(1, 1.0, 1.0)],
        [reply(0, 0.5, 0.5), reply(2, 9.0, 9.0)],
        [reply(0, 0.5, 0.5), reply(1, 0.9, 1.0)],  # as it was is no rise
        [reply(0, 0.6, 0.5), reply(2, 8.0, 8.0)],  # above 0.5 of the third round, though below 1.0 of the first
        [reply(1, 0.9, 1.1)],
    )
    assert [n["retired"] for n in notes] == [[], [], [], [0], [0, 1]]
    assert Plateau().retired(notes[-1]) == {0, 1} and Plateau().retired(None) == frozenset()


def test_training_and_validation_may_outweigh_each_other() -> None:
    up, down = [reply(0, 1.0, 1.0)], [reply(0, 0.9, 1.2)]
    assert learnt(Plateau(), up, down)[1]["retired"] == []  # 0.99
    assert learnt(Plateau(lam=0.5), up, down)[1]["retired"] == [0]  # 1.05


@pytest.mark.parametrize("record_only", [False, True])
def test_the_run_ends_when_all_have_stopped(record_only: bool) -> None:
    stop = Plateau(record_only=record_only)
    notes = learnt(stop, [reply(i, 1.0, 1.0) for i in range(4)], *([reply(i, 2.0, 1.0)] for i in range(4)))
    assert [stop.reached(n) for n in notes] == [None, None, None, None, 5]
    reasons = [stop(State(5, {}, {"stop": n}), FLEET, []) for n in notes]
    assert reasons[:4] == [None] * 4
    assert (reasons[4] is None) == record_only and (record_only or "4 clients" in str(reasons[4]))
    assert stop.retired(notes[-1]) == frozenset(), "a run that goes on has everybody again"
    later = stop.learn(notes[-1], State(5, {}), [reply(0, 9.0, 9.0)], FLEET)
    assert stop.reached(later) == 5, "noted once"


def test_who_has_stopped_is_not_selected_and_the_rest_all_are_if_they_are_few() -> None:
    sim = world(replace(small(METHODS["fedavg"]), stop=Plateau(), schedule=Sync(0.6)), "mlp")
    state = sim.begin().state

    def asked(retired: list[int], round: int = 0) -> list[int]:
        note = {"loss": {}, "retired": retired, "reached": None}
        orders = sim.method.plan(replace(state, round=round, notes={"stop": note}), sim.fleet, sim.model, Key(0))
        return [o.client for o in orders]

    assert all(len(asked([2], t)) == 3 and 2 not in asked([2], t) for t in range(10))
    assert asked([0, 4]) == [1, 2, 3]
    assert asked([0, 1, 4]) == [2, 3], "fewer than the three that a round needs"
    assert asked([0, 1, 2, 4]) == [3] and asked([0, 1, 2, 3, 4]) == []


@pytest.mark.parametrize("name", METHODS)
def test_any_method_takes_it(name: str) -> None:
    sim = world(replace(small(METHODS[name]), stop=Plateau()), "mlp")
    now, told = play(sim, 2)
    for r in told:
        assert r.record["outcomes"] == {"accepted": 5}
        assert all(c["metrics"].keys() >= {"loss", "val_loss"} for c in r.clients)
    note = now.state.notes["stop"]
    last = {c["client"]: 0.7 * c["metrics"]["loss"] + 0.3 * c["metrics"]["val_loss"] for c in told[1].clients}
    assert note["loss"] == pytest.approx(last)
    first = {c["client"]: 0.7 * c["metrics"]["loss"] + 0.3 * c["metrics"]["val_loss"] for c in told[0].clients}
    assert note["retired"] == [i for i in sorted(last) if last[i] > first[i]]


def test_watching_for_the_end_changes_nothing_before_it() -> None:
    plain, watched = (play(world(m, "mlp"), 2)[0] for m in (
        small(METHODS["fedspu"]), replace(small(METHODS["fedspu"]), stop=Plateau())
    ))  # fmt: skip
    assert all_bits(dict(plain.state.params)) == all_bits(dict(watched.state.params))


def test_one_run_gives_both_columns(tmp_path: Path) -> None:
    """To the bit: the figures of the run that stops, and those of the run that never heard of it, each from its own."""
    settings: dict[str, Any] = {
        "method": {"name": "fedspu", "fraction": 1.0, "epochs": 1, "lr": 2.0},
        "clients": 3,
        "rounds": 8,
        "model": "mlp:hidden=8",
        "eval_every": 4,
    }
    result = run(Run(**settings, stop="plateau:lam=0:record_only=true"), tmp_path / "both")
    both, stops = result.figures(), run(Run(**settings, stop="plateau:lam=0")).figures()
    assert stops["rounds"] < both["rounds"] == 8 and stops["rounds"] % 4, "else the test shows nothing"
    assert "risen" in stops["stopped"] and both["stopped"] is None
    assert both["early"]["round"] == stops["rounds"] and both["early"]["scores"] == stops["scores"]
    assert all(both["early"][k] == stops[k] == stops["early"][k] for k in ("down", "up", "flops", "joules", "seconds"))
    assert both["outcomes"] == {"accepted": sum(len(r["asked"]) for r in result.history.rounds)}
    assert run(Run(**settings)).figures()["early"] is None
