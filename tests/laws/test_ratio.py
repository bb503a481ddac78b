"""The bandit that chooses how much is dropped, on rewards that are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fedquilt.fleet import Device, Fleet
from fedquilt.key import Key
from fedquilt.parts.ratio import EUCB, Given, sending
from fedquilt.types import Order, Reply, State

KEY = Key(3)


def pulled(bandit: EUCB, peak: float, rounds: int, seed: int) -> tuple[object, list[float]]:
    """Drop ratios of so many rounds, where a ratio pays the more the nearer it is to the peak."""
    arms, drops = None, []
    for t in range(rounds):
        drop = bandit.drop(arms, Key(seed).at(t))
        arms, drops = bandit.told(arms, drop, 3 * max(0.0, 1 - 4 * abs(drop - peak))), [*drops, drop]
    return arms, drops


@pytest.mark.parametrize("peak", [0.1, 0.5, 0.85])
def test_it_finds_what_pays(peak: float) -> None:
    """Late draws are at most half as far from the best ratio as random ones are, for each of several seeds."""
    for seed in range(4):
        arms, drops = pulled(EUCB(discount=1.0), peak, 120, seed)
        assert sum(abs(d - peak) < 0.25 for d in drops[60:]) > 40
        assert sum(abs(d - peak) for d in drops[60:]) / 60 < (peak**2 + (1 - peak) ** 2) / 4
        assert arms is not None


def test_intervals_always_partition() -> None:
    bandit = EUCB(narrow=0.1, most=0.8)
    arms = None
    for t in range(60):
        drop = bandit.drop(arms, KEY.at(t))
        arms = bandit.told(arms, drop, 0.0)
        cuts = arms["cuts"]
        assert cuts[0] == 0 and cuts[-1] == 0.8 and all(a < b for a, b in pairwise(cuts))
        assert 0 <= drop < 0.8
    assert len(arms["cuts"]) > 5


def test_by_hand() -> None:
    """Two arms: what was never drawn comes first; then mean and bonus, older rewards counting less."""
    arms = {"cuts": [0.0, 0.5, 1.0], "pulls": [[0.7, 1.0]]}
    assert EUCB().best(arms) == (0.0, 0.5)
    arms = {"cuts": [0.0, 0.5, 1.0], "pulls": [[0.7, 1.0], [0.2, 0.1]]}
    # weights 0.5 and 1: the right arm has mean 1 and bonus sqrt(2 ln 1.5 / 0.5), the left 0.1 and sqrt(2 ln 1.5)
    assert EUCB(discount=0.5).best(arms) == (0.5, 1.0)
    arms = {"cuts": [0.0, 0.5, 1.0], "pulls": [[0.7, 0.0], [0.2, 1.0], [0.2, 1.0]]}
    # weights 0.25; 0.5 and 1: bonus sqrt(2 ln 1.75 / 0.25) = 2.12 beats 1 + sqrt(2 ln 1.75 / 1.5) = 1.86
    assert EUCB(discount=0.5).best(arms) == (0.5, 1.0)
    assert EUCB(discount=1.0).best({**arms, "pulls": [*arms["pulls"], [0.7, 0.0]]}) == (0.0, 0.5)


def reply(client: int, seconds: float, loss: float, round: int) -> Reply:
    order = Order("", 0, client, round, {}, None, None)  # type: ignore[arg-type]
    return Reply(client, round, {}, None, 1.0, {"loss": loss}, {}, seconds, order)  # type: ignore[arg-type]


def test_who_ends_with_the_others_while_the_loss_falls_is_rewarded_most() -> None:
    fleet, bandit = Fleet({i: Device() for i in range(3)}, {0: 1, 1: 1, 2: 1}), EUCB(floor=0.1)
    state = State(0, {})
    note = bandit.learn(None, state, [reply(i, 10.0, 2.0, 0) for i in range(3)], fleet)
    assert [note["arms"][str(i)]["pulls"][0][1] for i in range(3)] == [0, 0, 0], "no earlier loss"
    drops = {i: bandit(note, i, Device(), sending(0, 1, i)) for i in range(3)}
    late = [reply(i, s, 1.5, 1) for i, s in enumerate((10.0, 4.0, 16.0))]
    note = bandit.learn(note, replace(state, round=1), late, fleet)
    rewards = {i: note["arms"][str(i)]["pulls"][1] for i in range(3)}
    assert all(abs(1 - drops[i] - rewards[i][0]) < 1e-12 for i in drops), "the ratio that the order had"
    assert rewards[0][1] == pytest.approx(0.5 / 0.1) and rewards[1][1] == rewards[2][1] == pytest.approx(0.5 / 0.6)


def test_a_given_share_leaves_the_bandit_out() -> None:
    assert EUCB(0.5)(None, 0, Device(), KEY) == Given(0.5)(None, 0, Device(), KEY) == 0.5
    assert EUCB(0.5).learn(None, State(0, {}), [reply(0, 1.0, 1.0, 0)], Fleet({}, {})) is None
    assert Given()(None, 0, Device(width=0.3), KEY) == 0.3
    for bad in ({"share": 0.0}, {"discount": 0.0}, {"most": 1.5}, {"narrow": 0.0}):
        with pytest.raises(ValueError, match="above 0"):
            EUCB(**bad)
