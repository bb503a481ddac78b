"""Who is chosen, on fleets where the right choice is known; and partial work by time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedquilt.cover import Cover
from fedquilt.drive.wire import decode_reply
from fedquilt.fleet import Device, Fleet
from fedquilt.fleet.presence import Trace
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.parts.merge import CoverMean, Filled
from fedquilt.parts.portion import Portion, Timely, layers, outer
from fedquilt.parts.presence import LeastAvailable, StaleMean
from fedquilt.parts.schedule import Carried, Sync
from fedquilt.parts.select import Uniform
from fedquilt.parts.timing import drawn
from fedquilt.parts.utility import PowerOfChoice, Pyramid, Utility
from fedquilt.types import State

from ..laws.strategies import all_bits
from ..world import FAMILIES, play, small, world
from .hand import DEVICE, fleet, params, reply, state

KEY = Key(5)
ZERO = params(0.0, 0.0)


def known(n: int, **fields: Any) -> dict[int, dict[str, Any]]:
    """What Oort knows of ``n`` clients; ``worth=...`` and ``seconds=...`` as lists or numbers."""
    given = {"worth": 1.0, "seconds": 1.0, "last": 1, "times": 1} | fields
    return {i: {k: v[i] if isinstance(v, list) else v for k, v in given.items()} for i in range(n)}


def noted(clients: Any, deadline: float = 0.5, round: int = 1) -> State:
    return state(ZERO, round, select={"clients": clients, "worth": [], "deadline": deadline})


# ---- drawing
def test_a_draw_without_replacement_is_as_likely_as_its_weights() -> None:
    first = Counter(drawn([3, 5, 8], [1.0, 2.0, 1.0], 1, KEY.at(i))[0] for i in range(2000))
    assert abs(first[5] / 2000 - 0.5) < 0.04 and abs(first[3] / 2000 - 0.25) < 0.04
    assert sorted(drawn([3, 5, 8], [0.0, 1.0, 1.0], 2, KEY)) == [5, 8], "no weight, no luck"
    assert sorted(drawn([3, 5, 8], [1.0, 1.0, 1.0], 9, KEY)) == [3, 5, 8] and not drawn([3], [1.0], 0, KEY)


# ---- power of choice
def test_power_of_choice_takes_the_worst_of_its_candidates() -> None:
    part, all_ten = PowerOfChoice(10.0), fleet(10)
    note = part.learn(
        None, state(ZERO), [replace(reply(i, ZERO, ZERO), metrics={"loss": i}) for i in range(8)], all_ten
    )
    told = state(ZERO, 1, select=note)
    assert part(told, all_ten, 2, KEY) == [8, 9], "who was never heard of comes first"
    heard = part.learn(note, told, [replace(reply(i, ZERO, ZERO), metrics={"loss": 0.5}) for i in (8, 9)], all_ten)
    assert part(state(ZERO, 2, select=heard), all_ten, 3, KEY) == [5, 6, 7]
    picked = PowerOfChoice(1.0)(state(ZERO, 2, select=heard), all_ten, 3, KEY)
    assert sorted(drawn(list(range(10)), [1.0] * 10, 3, KEY)) == picked, "as many candidates as places: no choice"


# ---- Oort
def test_oort_scores_by_worth_time_and_age() -> None:
    part = Utility(clip=1.0)
    same = part.scores(known(3), 1, 0.5)
    assert len(set(same.values())) == 1, "equal clients have equal scores"
    far = part.scores(known(4, seconds=[1.0, 1.0, 1.0, 2.0]), 1, 0.5)
    assert far[3] == pytest.approx(far[0] / 4), "twice the deadline costs a factor of four at alpha = 2"
    fast = part.scores(known(4, seconds=[0.1, 1.0, 1.0, 1.0]), 1, 0.5)
    assert fast[0] == fast[1], "no bonus for being early"
    mixed = part.scores(known(3, worth=[1.0, 2.0, 3.0]), 1, 1.0)
    assert [mixed[i] for i in range(3)] == [0.0, 0.5, 1.0]
    old = part.scores(known(2, last=[1, 4]), 5, 1.0)
    assert old[0] - old[1] == pytest.approx(math.sqrt(0.1 * math.log(5)) - math.sqrt(0.1 * math.log(5) / 4))
    clipped = Utility(clip=0.5).scores(known(3, worth=[1.0, 2.0, 90.0]), 1, 1.0)
    assert clipped[1] == clipped[2] == 1.0


def test_oort_exploits_the_valuable_and_fast_and_explores_the_new() -> None:
    greedy = Utility(explore=0.0, least=0.0, clip=1.0)
    worth = [1.0, 9.0, 9.0, 9.0, 2.0, 1.0]
    clients = known(6, worth=worth, seconds=[1.0, 1.0, 1.0, 9.0, 1.0, 1.0])
    assert greedy(noted(clients), fleet(6), 2, KEY) == [1, 2], "the slow one's worth is not worth its time"
    assert 3 in replace(greedy, alpha=0.0)(noted(clients), fleet(6), 3, KEY)
    curious = Utility(explore=1.0, decay=1.0)
    assert curious(noted(known(6)), fleet(10), 4, KEY) == [6, 7, 8, 9], "only new ones, while there are any"
    assert set(curious(noted(known(8)), fleet(10), 4, KEY)) > {8, 9}
    assert len(greedy(noted(known(2)), fleet(10), 4, KEY)) == 4, "too few are known: the rest is new"
    tired = replace(greedy, most=3)
    times = known(6, worth=worth, times=[1, 3, 1, 1, 1, 1])
    assert tired(noted(times), fleet(6), 2, KEY) == [2, 3]
    assert tired(noted(times), fleet(6), 6, KEY) == list(range(6)), "unless nobody else is left"
    half = Counter(i for s in range(40) for i in Utility(0.5, 1.0)(noted(known(20)), fleet(40), 10, KEY.at(s)))
    assert sum(n for i, n in half.items() if i >= 20) == 5 * 40


def test_oort_is_uniform_among_equals_and_explores_by_speed() -> None:
    part = Utility(explore=0.0, least=0.0)
    seen = Counter(i for s in range(400) for i in part(noted(known(8)), fleet(8), 2, KEY.at(s)))
    assert all(abs(n - 100) < 35 for n in seen.values()) and len(seen) == 8
    quick = fleet(8, c3=replace(DEVICE, flops=7e3))
    first = Counter(i for s in range(400) for i in part(noted({}), quick, 1, KEY.at(s)))
    assert 150 < first[3] < 250


def test_oort_learns_worth_from_squared_losses_and_paces_itself() -> None:
    part, three = Utility(window=2, deadline=0.3, pace=0.1), fleet(3)
    note = None
    for r, rms in enumerate([2.0, 2.0, 1.5, 2.0, 5.0, 5.0]):
        note = part.learn(note, state(ZERO, r), [reply(0, ZERO, ZERO, r, 10.0, seconds=3.0, rms_loss=rms)], three)
        if r == 3:
            assert note["deadline"] == pytest.approx(0.4), "two rounds were worth no more than the two before"
    assert note is not None and note["deadline"] == pytest.approx(0.4), "they have been worth more again"
    assert note["clients"][0] == {"worth": 50.0, "seconds": 3.0, "last": 6, "times": 6}


def test_a_clients_rms_loss_is_that_of_its_samples() -> None:
    """Not of its batches: with one sample a batch and no step to speak of, both are known."""
    ends = []
    for batch in (1, 4):
        sim = world(small(METHODS["oort"], lr=1e-30, batch=batch), "mlp", widths=(1.0,))
        now, told = play(sim, 1)
        ends.append({c["client"]: c["metrics"]["rms_loss"] for c in told[0].clients})
        assert all(c["metrics"]["rms_loss"] > c["metrics"]["loss"] for c in told[0].clients)
        assert now.state.notes["select"]["clients"].keys() == {0, 1, 2, 3, 4}
    assert all(ends[0][i] == pytest.approx(ends[1][i], rel=1e-5) for i in range(5))


# ---- REFL
def windows(tmp_path: Any, lines: list[str]) -> Fleet:
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n" + "\n".join(lines))
    return replace(fleet(4), present=Trace(str(path))).now(0, 10.0, KEY)


def test_refl_takes_first_who_will_be_away_soon(tmp_path: Any) -> None:
    """In the slot from 20 to 30 clients 1 and 3 are away, 2 for half of it, 0 not at all."""
    there = windows(tmp_path, ["0,0,99", "1,0,12", "2,0,25", "3,0,19"])
    part = LeastAvailable(accuracy=1.0)
    told = state(ZERO, 0, select={"last": {}, "slot": 10.0})
    assert [there.outlook(i, 10.0, 20.0) for i in range(4)] == [1.0, 0.0, 0.5, 0.0]
    assert part(told, there, 2, KEY) == [1, 3] and part(told, there, 3, KEY) == [1, 2, 3]
    assert replace(part, accuracy=0.0)(told, there, 1, KEY) == [0], "a predictor that is always wrong"
    rested = state(ZERO, 7, select={"last": {1: 6, 3: 1}, "slot": 10.0})
    assert part(rested, there, 2, KEY) == [2, 3], "client 1 has just taken part"
    assert part(rested, there, 4, KEY) == [0, 1, 2, 3], "unless there are no others"


def test_refl_knows_when_a_slot_is() -> None:
    part = LeastAvailable(alpha=0.25)
    first = part.learn(
        None, state(ZERO), [reply(0, ZERO, ZERO, seconds=4.0), reply(1, ZERO, ZERO, seconds=8.0)], fleet(2)
    )
    assert first == {"last": {0: 0, 1: 0}, "slot": 8.0}
    late = part.learn(first, state(ZERO, 1), [reply(0, ZERO, ZERO, 0, seconds=99.0)], fleet(2))
    assert late["slot"] == 8.0, "a late reply says nothing of this round"
    next_ = part.learn(first, state(ZERO, 1), [reply(0, ZERO, ZERO, 1, seconds=4.0)], fleet(2))
    assert next_ == {"last": {0: 1, 1: 0}, "slot": 0.75 * 4 + 0.25 * 8}


def test_refl_weighs_the_late_by_age_and_by_how_odd_they_are() -> None:
    now = state(params(0.0, 0.0), 3)
    fresh = [reply(i, params(1.0, 0.0), ZERO, 3) for i in (0, 1)]
    like, odd = reply(2, params(1.0, 0.0), ZERO, 2), reply(3, params(0.0, 3.0), ZERO, 0)
    part = StaleMean(0.35)
    assert part.weights(now, [*fresh, like, odd])[:3] == [1.0, 1.0, 0.65 / 2], "the same as the mean: no oddity"
    assert part.weights(now, [*fresh, like, odd])[3] == pytest.approx(0.65 / 4 + 0.35 * (1 - math.exp(-1)))
    assert StaleMean(0.0).weights(now, [*fresh, odd])[2] == 0.25
    ages = [part.weights(now, [*fresh, replace(like, round=r)])[2] for r in (2, 1, 0)]
    assert ages == sorted(ages, reverse=True) and len(set(ages)) == 3
    w = part.weights(now, [*fresh, odd])
    merged = part(now, [*fresh, odd])["w"]
    assert torch.allclose(merged, torch.tensor([2 / sum(w), 3 * w[2] / sum(w)]))
    assert part.weights(now, [odd]) == [0.65 / 4], "nobody is fresh: nobody is odd"


def test_refl_merges_what_is_late_once_and_asks_for_fewer_meanwhile() -> None:
    schedule = Carried(0.5, over=1.3)
    assert [schedule.want(20, out) for out in (0, 3, 9)] == [13, 10, 5] and schedule.keeps_late
    assert [schedule.enough(n, 13 - n) for n in (9, 10)] == [False, True]
    method = replace(METHODS["refl"](fraction=0.8, epochs=1, batch=4), schedule=Carried(0.8, over=1.3))
    _, told = play(world(method), 4)
    late = [(c["client"], c["round"] - c["staleness"]) for r in told for c in r.clients]
    assert len(set(late)) == len(late), "each order is answered once"
    assert any(c["staleness"] for r in told for c in r.clients) and not any(
        "late" in r.record["outcomes"] for r in told
    )


# ---- PyramidFL
def test_pyramid_sends_less_of_the_useless_and_fills_the_wait() -> None:
    part, cohort = Pyramid(low=0.1, high=0.7, epochs=2), fleet(3)
    base = {"worth": 1.0, "seconds": 1.0, "last": 1, "times": 1, "down": 0.0, "up": 1.0}
    works = {0: (9.0, 4.0), 1: (1.0, 1.0), 2: (5.0, 2.0)}
    clients = {i: {**base, "change": change, "work": work} for i, (change, work) in works.items()}
    told = part.together(noted(clients), cohort)
    drop = {i: b.scalars["drop"] for i, b in told.items()}
    assert drop == {0: pytest.approx(0.1), 2: pytest.approx(0.3), 1: pytest.approx(0.5)}, "by rank of the change"
    # ends: 4.9, 2.7, 1.5; iterations of 2, 1 and 0.5 seconds: 0, 2 and 6 more of them
    assert {i: b.scalars["times"] for i, b in told.items()} == {0: 1.0, 2: 2.0, 1: 4.0}
    again = replace(part, longest=0.5).together(noted(clients), cohort)
    assert again[1].scalars["times"] == 1.5
    # of three that are asked two are waited for: 1 and 2, and the mark is at 2.7; 0 is late and adds nothing
    hasty = replace(part, over=1.5).together(noted(clients), cohort)
    assert {i: b.scalars["times"] for i, b in hasty.items()} == {0: 1.0, 2: 1.0, 1: 2.0}
    fresh = part.together(noted({}), cohort)
    assert all(b.scalars["times"] == 1.0 for b in fresh.values())


def test_pyramid_learns_the_change_from_what_arrived() -> None:
    part = Pyramid()
    half = Cover.masks({"w": torch.tensor([True, False])})
    got = reply(0, {"w": torch.tensor([3.0])}, params(1.0, 5.0), weight=10.0, cover=half, seconds=2.012, rms_loss=1.0)
    got = replace(got, order=replace(got.order, scalars={"times": 2.0}))  # type: ignore[type-var]
    note = part.learn(None, state(params(1.0, 5.0)), [got], fleet(1))["clients"][0]
    assert note["change"] == 10 * 2.0 and note["work"] == pytest.approx(1.0)  # 8 bytes down, 4 up, at 1000 a second
    assert (note["down"], note["up"]) == (0.008, 0.008)
    assert note["seconds"] == pytest.approx(1.016), "what it was told to add does not make it slow"


def test_what_stays_behind_counts_as_no_change_or_is_left_out() -> None:
    sim = world(small(METHODS["pyramidfl"], low=0.4, high=0.6), "mlp")
    now, told = play(sim, 1)
    full = play(world(small(METHODS["pyramidfl"], low=0.0, high=0.0), "mlp"), 1)
    assert sum(c["up"] for c in told[0].clients) < 0.8 * sum(c["up"] for c in full[1][0].clients)
    a, b = (params(2.0, 2.0), Cover.whole(ZERO)), ({}, Cover({}))
    pair = [reply(0, a[0], ZERO), reply(1, b[0], ZERO, cover=b[1])]
    assert Filled()(state(ZERO), pair)["w"].tolist() == [1.0, 1.0]
    assert CoverMean()(state(ZERO), pair)["w"].tolist() == [2.0, 2.0]
    assert now.state.round == 1


# ---- TimelyFL
SLOW = Device(flops=2.5e2, down=1e3, up=1e3)


def test_timely_gives_each_what_it_manages_in_the_kth_time() -> None:
    part, cohort = Timely(kth=0.5), fleet(3)
    note = {"clients": {0: {"unit": 1.0, "radio": 1.0}, 1: {"unit": 3.0, "radio": 1.0}}, "work": 1e3, "bytes": 1000}
    told = part.together(state(ZERO, 1, select=note), fleet(3, c2=SLOW))
    # ends: 2, 4, and 4 + 2 for the one that is new and has a quarter of the speed; the second is the mark
    assert {i: (b.scalars["times"], b.scalars["share"]) for i, b in told.items()} == {
        0: (3.0, 1.0),
        1: (1.0, 1.0),
        2: (1.0, 4 / 6),
    }
    assert all(
        b.scalars["share"] == 1.0 for b in Timely(kth=1.0).together(state(ZERO, 1, select=note), cohort).values()
    )
    assert Timely(kth=1.0, most=2).together(state(ZERO, 1, select=note), cohort)[0].scalars["times"] == 2.0
    assert part.together(state(ZERO), cohort) == {}, "the first round is the probe"


def test_timely_learns_from_whole_work_alone() -> None:
    part = Timely()
    full = reply(0, ZERO, ZERO, weight=5.0, seconds=2.016, scalars={"times": 2.0})
    note = part.learn(None, state(ZERO), [full], fleet(2))
    assert note["clients"][0] == {"unit": pytest.approx(1.0), "radio": 0.016}
    assert note["work"] == pytest.approx(1.0 * 1e3 / 5) and note["bytes"] == 8
    part_of_it = reply(0, ZERO, ZERO, weight=5.0, seconds=9.0, scalars={"share": 0.5})
    assert part.learn(note, state(ZERO), [part_of_it], fleet(2))["clients"] == note["clients"]


@pytest.mark.parametrize("family", ["cnn", "resnet", "lstm-tied", "mlp"])
def test_frozen_layers_stay_to_the_bit_and_are_not_sent(family: str) -> None:
    """Their statistics too; who trains a smaller share sends less and computes less."""
    sim = world(small(METHODS["timelyfl"], momentum=0.9), family, widths=(1.0,))
    begun = sim.begin().state
    orders = sim.method.plan(begun, sim.fleet, sim.model, sim.key, (), sim.run)
    seen = []
    for share in (1.0, 0.7, 0.01):
        order = replace(orders[0], scalars={**orders[0].scalars, "share": share})
        [done] = sim.site.work([order])
        mine = outer(sim.model, share)
        got = decode_reply(done.reply or b"", order)
        assert got.cover.spans.keys() == (mine & begun.params.keys())
        assert all(not torch.equal(got.params[k], begun.params[k]) for k in got.params if k in sim.model.trainable)
        seen.append((len(done.reply or b""), done.usage.backward))
    assert seen == sorted(seen, reverse=True) and len(set(seen)) == 3
    last = layers(sim.model)[-1]
    assert {k.rpartition(".")[0] for k in outer(sim.model, 0.01)} == {last}


def test_longer_work_is_so_many_steps() -> None:
    sim = world(small(METHODS["timelyfl"]), "mlp", widths=(1.0,))
    begun = sim.begin().state
    order = sim.method.plan(begun, sim.fleet, sim.model, sim.key, (), sim.run)[0]
    steps = []
    for times in (1.0, 2.5, 0.1):
        [done] = sim.site.work([replace(order, scalars={**order.scalars, "times": times})])
        steps.append(done.usage.steps)
    assert steps == [steps[0], int(2.5 * steps[0]), 1]


# ---- reductions: with its difference off, each is its parent
def end(name: str, family: str, **given: Any) -> Any:
    """After three rounds on equal devices, without what the clock would change."""
    method = replace(small(METHODS[name], **given), select=Uniform(), schedule=Sync(0.6), norm="shared")
    return all_bits(dict(play(world(method, family, widths=(1.0,)), 3)[0].state.params))


PARENTS = {
    "powerofchoice": {"weight": "uniform"},
    "oort": {},
    "pyramidfl": {},
    "refl": {"weight": "uniform"},
    "timelyfl": {},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", PARENTS)
def test_for_the_same_cohort_and_work_it_is_fedavg(name: str, family: str) -> None:
    assert end(name, family) == end("fedavg", family, **PARENTS[name])


@pytest.mark.parametrize("name", PARENTS)
def test_with_its_difference_on_it_is_not(name: str) -> None:
    """Through the method's own parts, on devices that differ."""
    method = replace(small(METHODS[name]), schedule=Carried(0.6) if name == "refl" else Sync(0.6))
    mine = all_bits(dict(play(world(method), 3)[0].state.params))
    other = replace(method, select=Uniform(), norm="shared", local=METHODS["fedavg"](epochs=1, batch=4).local)
    parent = replace(other, merge=CoverMean(PARENTS[name].get("weight", "samples")))  # type: ignore[arg-type]
    assert mine != all_bits(dict(play(world(parent), 3)[0].state.params))


def test_timely_on_equal_devices_is_one_unit_of_work_for_all() -> None:
    method = replace(small(METHODS["timelyfl"]), norm="shared")
    sim = world(method, "mlp", widths=(1.0,))
    now, _ = play(sim, 2)
    orders = sim.method.plan(now.state, sim.fleet, sim.model, sim.key, (), sim.run)
    assert {(o.scalars["times"], o.scalars["share"]) for o in orders} == {(1.0, 1.0)}
    assert isinstance(method.local, Portion)
    mine = all_bits(dict(now.state.params))
    assert mine == all_bits(dict(play(world(small(METHODS["fedavg"]), "mlp", widths=(1.0,)), 2)[0].state.params))
