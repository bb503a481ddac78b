"""The aperiodic update: windows on the virtual clock, and the compensation of delay by hand and on a quadratic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedquilt.drive.sim import Simulator, packed, unpacked
from fedquilt.fit import SGD
from fedquilt.fleet import Device, Fleet
from fedquilt.methods import METHODS
from fedquilt.parts.delayed import Compensated
from fedquilt.parts.merge import CoverMean, Filled
from fedquilt.parts.schedule import Sync, Windows
from fedquilt.run import Run
from fedquilt.run import run as start
from fedquilt.store import flatten, restore
from fedquilt.types import Merge, Schedule

from ..laws.strategies import all_bits
from ..methods.hand import params, reply, state
from ..world import play, replace, small, world

SPEEDS = {i: 1e7 / (1 + i) for i in range(5)}  # client 4 takes five times as long as client 0
SLOW = Fleet({i: Device(flops=f, down=1e12, up=1e12) for i, f in SPEEDS.items()}, dict.fromkeys(SPEEDS, 24))
EVEN = Fleet({i: Device(flops=1e7, down=1e12, up=1e12) for i in SPEEDS}, dict.fromkeys(SPEEDS, 24))


def simulator(schedule: Schedule, merge: Merge, fleet: Fleet = SLOW, family: str = "mlp", **given: Any) -> Simulator:
    method = replace(small(METHODS["fedavg"], **given), schedule=schedule, merge=merge)
    return world(method, family, fleet=fleet)


@pytest.fixture(scope="module")
def longest() -> float:
    """What a round takes the slowest, and a little more."""
    now, _ = play(simulator(Sync(1.0), CoverMean()), 1)
    return now.clock * 1.001


# ---- without staleness
@pytest.mark.parametrize(("fleet", "share"), [(EVEN, 0.5), (EVEN, 1.0), (SLOW, 2.0)])
@pytest.mark.parametrize("family", ["mlp", "cnn", "lstm"])
def test_without_staleness_it_is_fedavg_to_the_bit(family: str, fleet: Fleet, share: float) -> None:
    """Whatever the windows: an empty one is prolonged, and one in which everybody has answered is over."""
    plain, told = play(simulator(Sync(1.0), CoverMean(), fleet, family), 3)
    seconds = told[0].record["clock"]
    mine, said = play(simulator(Windows(1.0, share=share, seconds=seconds), Compensated(1.0), fleet, family), 3)
    assert all_bits(dict(mine.state.params)) == all_bits(dict(plain.state.params))
    assert [r.record["merged"] for r in said] == [r.record["merged"] for r in told]
    if share >= 1:  # the orders ask how many steps were made, so they are longer by some bytes
        assert [r.record["clock"] for r in said] == pytest.approx([r.record["clock"] for r in told], rel=1e-4)


# ---- windows
def test_each_window_merges_who_has_come_and_they_start_again(longest: float) -> None:
    """Shares of 0.5: clients 0 and 1 come in the first window, and again while client 4 trains once."""
    now, told = play(simulator(Windows(1.0, share=0.5, seconds=longest), Compensated()), 2)
    assert told[0].record["asked"] == [0, 1, 2, 3, 4] and told[0].record["merged"] == [0, 1]
    assert told[0].record["clock"] == pytest.approx(0.5 * longest)
    assert told[1].record["asked"] == [0, 1] and told[1].record["merged"] == [0, 1, 2, 3, 4]
    assert told[1].record["clock"] == pytest.approx(longest, rel=2e-3) and not now.flights
    assert {c["client"]: c["staleness"] for c in told[1].clients} == {0: 0, 1: 0, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize(("share", "first"), [(0.3, [0]), (0.5, [0, 1]), (0.8, [0, 1, 2, 3])])
def test_the_shares_of_the_paper(share: float, first: list[int], longest: float) -> None:
    _, told = play(simulator(Windows(1.0, share=share, seconds=longest), Compensated()), 1)
    assert told[0].record["merged"] == first and told[0].record["clock"] == pytest.approx(share * longest)


def test_a_window_in_which_nobody_answers_lasts_on(longest: float) -> None:
    seconds = longest / 50  # windows of a hundredth: the fastest comes in the twentieth
    now, told = play(simulator(Windows(1.0, share=0.5, seconds=seconds), Compensated()), 1)
    assert told[0].record["merged"] == [0] and now.state.round == 1
    assert told[0].record["clock"] == pytest.approx(0.5 * seconds * round(now.clock / (0.5 * seconds)))


def test_who_drops_out_is_noticed_and_holds_nobody_up(longest: float) -> None:
    sim = simulator(Windows(1.0, share=0.5, seconds=longest), Compensated(), replace(SLOW, dropout=0.6))
    now, told = play(sim, 6)
    out = [r.record["outcomes"] for r in told]
    assert sum(o.get("dropped", 0) for o in out) > 3 and sum(o.get("accepted", 0) for o in out) > 3
    nobody = simulator(Windows(1.0, share=0.5, seconds=longest), Compensated(), replace(SLOW, dropout=1.0))
    now, told = play(nobody, 1)
    assert told[0].record["outcomes"] == {"dropped": 5} and now.state.round == 1


def test_it_goes_on_with_those_that_are_out(longest: float) -> None:
    there, _ = play(simulator(Windows(1.0, share=0.3, seconds=longest), Compensated()), 5)
    sim = simulator(Windows(1.0, share=0.3, seconds=longest), Compensated())
    half, _ = play(sim, 2)
    assert half.flights
    again, _ = play(sim, 3, unpacked(restore(*flatten(packed(half)))))
    assert all_bits(dict(again.state.params)) == all_bits(dict(there.state.params)) and again.clock == there.clock


def test_any_method_runs_in_windows_and_the_fleet_says_how_long_a_round_is() -> None:
    settings = {"name": "fedavg", "fraction": 1.0, "epochs": 1}
    done = start(Run(method=settings, schedule="windows:share=0.5", clients=6, rounds=4, eval_every=0))
    spans = [r["seconds"] for r in done.history.rounds]
    assert done.record["method"].count("seconds=0.0") == 0
    assert any(c["staleness"] for c in done.history.clients) and max(spans) < 3 * min(spans)


@pytest.mark.parametrize("given", [{"share": 0.0}, {"seconds": -1.0}, {"fraction": 0.0}, {"seconds": float("inf")}])
def test_windows_that_cannot_be_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is a"):
        Windows(**given)
    with pytest.raises(ValueError, match="delta is a share"):
        Compensated(2.0)


# ---- the merge
def test_a_late_reply_by_hand() -> None:
    """Sent 1, now 0.5, back 0.8 after two steps of 0.1: a gradient of 1, and by half its square less at 0.5."""
    late = reply(0, params(0.8), params(1.0), steps=2.0)
    merge = Compensated(0.5, SGD(0.1))
    # 0.8 + (0.5 - 1) - 0.2 * 0.5 * 1 * 1 * (0.5 - 1)
    assert float(merge(state(params(0.5), 1), [late])["w"]) == pytest.approx(0.35)
    assert float(Compensated(0.0)(state(params(0.5), 1), [late])["w"]) == pytest.approx(0.3)
    fresh = reply(1, params(0.1), params(0.5), round=1, weight=3.0, steps=2.0)
    assert float(merge(state(params(0.5), 1), [late, fresh])["w"]) == pytest.approx((0.35 + 3 * 0.1) / 4)


def test_without_compensation_it_is_the_mean_of_changes() -> None:
    late = [reply(0, params(0.8, 2.0), params(1.0, 1.0), steps=2.0), reply(1, params(0.0, 1.0), params(0.5, 1.5))]
    now = state(params(0.5, 1.5), 1)
    plain = Filled()(now, late)["w"]
    assert torch.allclose(Compensated(0.0)(now, late)["w"], plain)


def test_the_factor_is_bounded() -> None:
    far = reply(0, params(-1e6), params(0.0), steps=1.0)
    assert float(Compensated(1.0)(state(params(1e6), 1), [far])["w"]) == -1e6, "twice the change, not 2e7 times"


def test_statistics_are_averaged_as_they_come() -> None:
    """A variance that is shifted by what others changed might be below zero."""
    sent, now = ({"norm.running_var": torch.tensor([v])} for v in (5.0, 2.0))
    late = reply(0, {"norm.running_var": torch.tensor([1.0])}, sent, steps=3.0)
    assert float(Compensated(1.0)(state(now, 1), [late])["norm.running_var"]) == 1.0


def test_compensation_beats_none_on_a_quadratic() -> None:
    """f = x.A x / 2 with unit gradients' curvature: steps that are always so many behind end farther from zero."""

    def end(delta: float, delay: int) -> float:
        merge, curve, lr = Compensated(delta, SGD(0.3)), torch.tensor([1.0, 0.6, 0.3]), 0.3
        past = [params(1.0, -1.2, 1.5)]
        gaps = 0.0
        for t in range(12):
            base = past[max(0, t - delay)]
            new = {"w": base["w"] - lr * curve * base["w"]}
            now = merge(state(past[-1], t), [reply(0, new, base, round=max(0, t - delay), steps=1.0)])
            fresh = past[-1]["w"] - lr * curve * past[-1]["w"]
            gaps += float((now["w"] - fresh).square().sum())  # from the step that is not late
            past.append(now)
        return gaps

    for delay in (1, 2, 3):
        assert end(1.0, delay) < end(0.5, delay) < end(0.0, delay)
    assert end(1.0, 0) == end(0.0, 0) == pytest.approx(0.0, abs=1e-10)
