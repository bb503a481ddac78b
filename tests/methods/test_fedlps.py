"""FedLPS: the bandit on known rewards, its reduction, its cost, and that it goes on with scores and arms."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from fedquilt.cover import Cover
from fedquilt.drive.sim import packed, unpacked
from fedquilt.fleet import Device, tiers
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.parts.learned import Learned
from fedquilt.parts.pucbv import PUCBV, Rationed, utility
from fedquilt.parts.ratio import sending
from fedquilt.parts.send import Random
from fedquilt.store import flatten, restore
from fedquilt.types import Grant, Order, Reply, State

from ..laws.strategies import all_bits
from ..world import TIERS, play, replace, small, world

NOTHING = Cover({})
FULL = Device(width=1.0)


def played(
    bandit: PUCBV, rounds: int, accuracy: Any, seconds: Any, seed: int = 0, device: Device = FULL
) -> tuple[list[float], Any]:
    """One client's ratios: after ratio s its accuracy is ``accuracy(s, before)``, and the round took ``seconds(s)``."""
    note: Any = None
    before, ratios = 0.0, []
    for t in range(rounds):
        ratio = bandit(note, 0, device, sending(seed, t, 0))
        order = Order("", seed, 0, t, {}, NOTHING, Grant(NOTHING), scalars={"ratio": ratio})
        now = accuracy(ratio, before)
        metrics = {"loss": 0.0, "train_accuracy": now, "initial_accuracy": 0.0}
        reply = Reply(0, t, {}, NOTHING, 1.0, metrics, seconds=seconds(ratio), order=order)
        note = bandit.learn(note, State(t, {}), [reply], tiers({0: 1}, (1.0,), Key(0)))
        before = now
        ratios.append(ratio)
    return ratios, note


# ---- by hand
def test_a_round_by_hand() -> None:
    """From 0 to 20 % in four seconds at a ratio of 0.5: its interval is split, both halves have the reward."""
    bandit = PUCBV(intervals=2, low=0.2)
    order = Order("", 0, 0, 0, {}, NOTHING, Grant(NOTHING), scalars={"ratio": 0.5})
    metrics = {"train_accuracy": 0.2, "initial_accuracy": 0.0}
    reply = Reply(0, 0, {}, NOTHING, 1.0, metrics, seconds=4.0, order=order)
    note = bandit.learn(None, State(0, {}), [reply], tiers({0: 1}, (1.0,), Key(0)))
    reward = (10 - 20 / (1 + math.exp(0.35 * 0.2))) / 4
    low, middle, high = note["0"]["arms"]
    assert low == [0.2, 0.5, [pytest.approx(reward)]] and middle == [0.5, pytest.approx(0.6), [pytest.approx(reward)]]
    assert high == [pytest.approx(0.6), 1.0, []]
    spread = math.log(1 + 10 * 10 / 9)
    tried = 1.0 + math.sqrt(0.5 * 2 * spread / (4 * 2))
    assert bandit.scores(bandit.arms(note["0"])) == pytest.approx([tried, tried, 1.0 + math.sqrt(0.5 * 2 * spread / 4)])


def test_utility_rises_from_nothing_to_ten() -> None:
    assert utility(0) == 0 and utility(100) == pytest.approx(10)
    assert utility(10) - utility(5) > utility(50) - utility(45) > 0


def test_the_last_points_count_as_shares_and_are_nothing_as_per_cent() -> None:
    """From 60 to 70 %: a reward near that of the first ten points, unless accuracies are taken in per cent."""

    def reward(full: float, before: float) -> float:
        order = Order("", 0, 0, 0, {}, NOTHING, Grant(NOTHING), scalars={"ratio": 0.5})
        metrics = {"train_accuracy": before + 0.1, "initial_accuracy": before}
        reply = Reply(0, 0, {}, NOTHING, 1.0, metrics, seconds=1.0, order=order)
        note = PUCBV(full=full).learn(None, State(0, {}), [reply], tiers({0: 1}, (1.0,), Key(0)))
        return max(max(rewards, default=0.0) for _, _, rewards in note["0"]["arms"])

    assert 0.9 < reward(1.0, 0.6) / reward(1.0, 0.0) < 1
    assert reward(100.0, 0.6) < 1e-6 * reward(100.0, 0.0)


def test_the_intervals_are_the_whole_range_until_some_are_given_up() -> None:
    _, note = played(PUCBV(), 30, lambda s, before: min(0.9, before + 0.02), lambda s: 1 + s)
    arms = note["0"]["arms"]
    assert arms[0][0] == 1 / 16 and arms[-1][1] == 1.0 and len(arms) > 5
    assert all(a[1] == b[0] for a, b in pairwise(arms))


# ---- known rewards
def test_regret_falls_on_a_known_reward() -> None:
    """Every ratio learns alike and time is what the ratio is: the small ones pay most."""
    late, early = [], []
    for seed in range(12):
        ratios, _ = played(PUCBV(), 40, lambda s, before: before + 0.002, lambda s: s * s, seed)
        early.append(sum(ratios[:5]) / 5)
        late.append(sum(ratios[-5:]) / 5)
    assert sum(late) / 12 < 0.6 * sum(early) / 12
    assert sum(x < 0.3 for x in late) >= 9


def test_a_weak_device_has_its_own_share_of_the_bandit() -> None:
    """It is never asked for more than it carries, and learns among the ratios that it can have."""
    weak, late = Device(width=0.25), []
    for seed in range(12):
        ratios, note = played(PUCBV(), 40, lambda s, before: before + 0.002, lambda s: s * s, seed, weak)
        assert all(1 / 16 <= s <= 0.25 for s in ratios) and len(set(ratios)) > 20, "not its most every time"
        assert [a[2] for a in note["0"]["arms"] if a[0] >= 0.25] == [[]] * 4, "what it cannot carry is never paid"
        late.append(sum(ratios[-10:]) / 10)
    assert sum(late) / 12 < 0.13, "the mean of a draw is 0.156"
    assert (
        PUCBV()(None, 0, Device(width=1 / 16), Key(0)) == 1 / 16
        and PUCBV()(None, 0, Device(width=0.01), Key(0)) == 0.01
    )


def test_ratios_that_ruin_accuracy_are_given_up() -> None:
    """Below 0.4 accuracy falls by ten points, from wherever it is."""
    for seed in range(6):
        ratios, note = played(PUCBV(), 40, lambda s, before: before + (0.01 if s >= 0.4 else -0.1), lambda s: s, seed)
        fell = [s for s in ratios if s < 0.4]
        assert fell, "it did try"
        lows = [(low, high) for low, high, _ in note["0"]["arms"]]
        for s in fell:
            assert not any(low < s - 1e-9 < high for low, high in lows), "what is below it in its interval is gone"
        assert sum(s >= 0.4 for s in ratios[20:]) >= 18


def test_the_bonus_has_influence() -> None:
    """With the same rewards and no bonus, other intervals are chosen."""
    with_it, without = (
        played(PUCBV(rho=rho), 12, lambda s, before: before + 0.02, lambda s: 3.0)[0] for rho in (0.5, 0.0)
    )
    assert with_it != without
    tried, fresh = PUCBV().scores([(0.0, 0.5, [0.1, 0.1, -0.1, -0.1]), (0.5, 1.0, [])])
    assert fresh > tried, "what is unknown is worth a try"
    assert all(s >= 1.0 for s in PUCBV().scores([(0.0, 1.0, [0.1])] * 90)), "a bonus is never below nothing"


def test_something_always_remains() -> None:
    arms = [(0.2, 1.0, [])]
    for _ in range(30):
        arms = PUCBV().split(arms, 0.5 * (arms[0][0] + arms[0][1]), 0.0, fell=True)
    assert len(arms) == 1 and arms[0][1] == 1.0 and arms[0][0] < 1.0


# ---- through the method's own path
def test_at_full_width_with_its_pulls_off_it_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = Learned.__call__
    monkeypatch.setattr(Learned, "__call__", lambda *args: calls.append(1) or real(*args))

    def end(family: str, width: float = 1.0, **given: Any) -> Any:
        method = small(METHODS["fedlps"], ratio="capability", mu=0.0, lam=0.0, pattern="ordered", **given)
        return all_bits(dict(play(world(method, family, widths=(width,)), 3)[0].state.params))

    for family in ("cnn", "resnet-group", "lstm"):
        plain = all_bits(dict(play(world(small(METHODS["fedavg"]), family, widths=(1.0,)), 3)[0].state.params))
        assert end(family) == plain != end(family, 0.8)
    assert len(calls) == 3 * 2 * 3 * 5


def test_learning_scores_costs_a_gradient_and_the_rest_is_as_small_as_the_ratio() -> None:
    """FLOPs of a round: of an ordered pattern those of the sub-model; a learned one adds a dense gradient an epoch."""

    def flops(pattern: str, width: float) -> float:
        method = small(METHODS["fedlps"], ratio="capability", pattern=pattern)
        sim = world(replace(method, send=Rationed()), "cnn", clients=2, widths=(width,))
        return sum(c["flops"] for c in play(sim, 1)[1][0].clients)

    full, half = flops("ordered", 1.0), flops("ordered", 0.5)
    assert half < 0.45 * full, "rows and columns are both cut"
    probe = flops("learned", 0.5) - half
    assert probe == pytest.approx(flops("learned", 1.0) - full, rel=0.02), "the gradient is of the dense model"
    assert 0 < probe < 0.5 * full


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_operations_at_a_ratio_are_those_of_the_sub_model_that_runs(share: float) -> None:
    """Those of FedDrop's sub-models, which are nets of so many units and nothing else."""

    def flops(method: Any) -> float:
        return sum(c["flops"] for c in play(world(method, "cnn", clients=2, widths=(1.0,)), 1)[1][0].clients)

    mine = small(METHODS["fedlps"], ratio="fixed", share=share, pattern="ordered", mu=0.0)
    assert flops(mine) == flops(small(METHODS["feddrop"], ratio=share)) > 0


def test_it_goes_on_with_its_scores_and_arms() -> None:
    method = small(METHODS["fedlps"])
    left_alone = flatten(dict(packed(play(world(method), 4)[0])))
    sim = world(method)
    said, tensors = flatten(dict(packed(play(sim, 2)[0])))
    again = unpacked(restore(json.loads(json.dumps(said)), {k: t.clone() for k, t in tensors.items()}))
    then = flatten(dict(packed(play(sim, 2, again)[0])))
    assert then[0] == left_alone[0] and all_bits(then[1]) == all_bits(left_alone[1])
    memory = sim.site.memories.load(0, again.state.versions[0] + 2)
    assert any(k.startswith("score/") for k in memory.tensors)


def test_a_ratio_is_never_above_what_the_device_carries() -> None:
    sim = world(small(METHODS["fedlps"]), widths=TIERS)
    now, told = play(sim, 3)
    for o in sim.method.plan(now.state, sim.fleet, sim.model, sim.key):
        assert 1 / 16 <= o.scalars["ratio"] <= sim.fleet.devices[o.client].width  # type: ignore[operator]
    assert 0 < told[-1].record["told"]["ratio"] < 1


def test_the_bandit_serves_other_sends() -> None:
    """FedDrop's random units, as many as the bandit says."""
    bandit = PUCBV()

    class Drawn(Rationed):
        def __call__(self, state: State, client: int, device: Device, model: Any, key: Key) -> Cover:
            return Random(self.ratio(state.notes.get("send"), client, device, key))(state, client, device, model, key)

    method = replace(small(METHODS["feddrop"]), send=Drawn(bandit))
    now, _ = play(world(method), 3)
    assert set(now.state.notes["send"]) == {"0", "1", "2", "3", "4"}
    assert torch.isfinite(next(iter(now.state.params.values()))).all()
