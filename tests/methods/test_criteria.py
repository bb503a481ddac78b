"""Participants by criteria: each for itself by hand, chosen once, and what it does on the paper's 128 phones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedquilt.fleet import Device, Fleet, muster
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.parts.criteria import ByCriteria
from fedquilt.parts.schedule import Sync
from fedquilt.parts.select import Uniform

from ..world import play, replace, small, world
from .hand import params, state

OFF = {"available": False, "complete": False, "diverse": False, "distinct": False, "plugged": False}


def of(devices: Mapping[int, Device], **more: Any) -> Fleet:
    return Fleet(devices, dict.fromkeys(devices, 1), **more)


# ---- each for itself
@pytest.mark.parametrize(
    ("criterion", "fleet", "chosen"),
    [
        ("plugged", of({i: Device(plugged=i in (1, 4)) for i in range(6)}), [1, 4]),
        ("complete", of({i: Device() for i in range(6)}, classes={0: 2, 1: 9, 2: 10, 3: 1, 4: 0, 5: 3}), [1, 2]),
        ("available", of({i: Device(plugged=i in (2, 5)) for i in range(6)}), [2, 5]),
    ],
)
def test_a_criterion_by_hand(criterion: str, fleet: Fleet, chosen: list[int]) -> None:
    if criterion == "available":  # there only if plugged in
        fleet = replace(muster("tiers:1", fleet.sizes, Key(0), "plugged"), devices=fleet.devices)
        now = fleet.now(0, 0.0, Key(3))
        fleet = replace(now, away=frozenset())
    assert ByCriteria(1 / 3, **{**OFF, criterion: True}).among(fleet) == chosen


def test_of_one_network_one_is_chosen_while_there_are_others() -> None:
    fleet = of({i: Device(network="home" if i < 4 else f"n{i}") for i in range(7)})
    chosen = ByCriteria(4 / 7, **{**OFF, "distinct": True}).among(fleet)
    assert len(chosen) == 4 and {4, 5, 6} <= set(chosen)
    unnamed = of({i: Device() for i in range(6)})
    assert len(ByCriteria(0.5).among(unnamed)) == 3, "no name is no network"


def test_unlike_devices_come_before_more_of_the_same() -> None:
    fleet = of({i: Device(tier="ABC"[min(i // 6, 2)]) for i in range(8)} | {8: Device(tier="C")})
    chosen = ByCriteria(6 / 9, **{**OFF, "diverse": True}).among(fleet)
    tiers = [fleet.devices[i].tier for i in chosen]
    assert {t: tiers.count(t) for t in "AB"} == {"A": 3, "B": 2} or tiers.count("A") >= 3
    few = [fleet.devices[i].tier for i in ByCriteria(2 / 9, **{**OFF, "diverse": True}).among(fleet)]
    assert sorted(few) == sorted(set(few)), "two chosen, two kinds"


def test_without_criteria_it_is_a_draw() -> None:
    fleet = of({i: Device() for i in range(40)})
    drawn = {tuple(ByCriteria(0.25, **OFF).among(replace(fleet, key=Key(s)))) for s in range(8)}
    assert len(drawn) == 8 and all(len(d) == 10 for d in drawn)


# ---- once
def test_they_are_chosen_once_and_all_take_part_in_every_round() -> None:
    method = replace(small(METHODS["fedavg"]), select=ByCriteria(0.6), schedule=Sync(0.6))
    now, told = play(world(method, "mlp", clients=10), 4)
    asked = [r.record["asked"] for r in told]
    assert len(asked[0]) == 6 and all(a == asked[0] == now.state.notes["select"] for a in asked)


def test_who_is_away_at_first_makes_them_no_fewer() -> None:
    """Six of ten are there: of all ten the share is four, in the first round too."""
    method = replace(small(METHODS["fedavg"]), select=ByCriteria(0.4), schedule=Sync(0.4))
    fleet = of({i: Device() for i in range(10)}, away=frozenset({1, 3, 5, 7}))
    first = world(method, "mlp", clients=10).method
    n = first.schedule.want(len(fleet), 0)
    asked = first.select(state(params(0.0)), fleet.without(fleet.away), n, Key(0))
    assert asked == first.select.learn(None, state(params(0.0)), [], fleet) and len(asked) == 4


def test_another_schedule_is_a_setting() -> None:
    method = replace(small(METHODS["fedavg"]), select=ByCriteria(0.6), schedule=Sync(0.3))
    now, told = play(world(method, "mlp", clients=10), 6)
    asked = [r.record["asked"] for r in told]
    assert all(len(a) == 3 for a in asked) and len({tuple(a) for a in asked}) > 1
    assert {i for a in asked for i in a} <= set(now.state.notes["select"])


def test_who_is_away_is_not_waited_for() -> None:
    part = ByCriteria(1.0)
    now = state(params(0.0), select=[0, 2, 4])
    fleet = of({i: Device() for i in (0, 1, 4)})
    assert part(now, fleet, 5, Key(0)) == [0, 4]


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share is of the clients"):
        ByCriteria(share)


# ---- on the paper's phones
def test_on_the_128_phones_each_criterion_does_what_it_says() -> None:
    """50 of 128, beside a draw: more are plugged in and on a network of their own, and the types are even."""
    fleet = muster("phones128", dict.fromkeys(range(128), 10), Key(0).at("fleet")).now(0, 0.0, Key(0))
    held: Callable[[list[int]], tuple[float, float, int]] = lambda chosen: (  # noqa: E731
        sum(fleet.devices[i].plugged for i in chosen) / len(chosen),
        len({fleet.devices[i].network for i in chosen}) / len(chosen),
        max(t := [sum(fleet.devices[i].tier == f"T{k}" for i in chosen) for k in range(1, 9)]) - min(t),
    )
    drawn = [held(Uniform()(state(params(0.0)), fleet, 50, Key(s))) for s in range(20)]
    mean = [sum(d[j] for d in drawn) / 20 for j in range(3)]
    plugged, networks, gap = held(ByCriteria(50 / 128).among(fleet))
    assert plugged > 0.75 > 0.6 > mean[0] and networks > mean[1] + 0.05 and gap <= 3 < mean[2], (mean, networks)
