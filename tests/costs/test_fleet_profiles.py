"""Devices, fleets, and what changes over time: pure functions, counts exact, one grammar."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedquilt.drive.sim import packed, unpacked
from fedquilt.fleet import (
    AVAILABILITY,
    FLEETS,
    LEVELS,
    PROFILES,
    STRAGGLERS,
    Device,
    Fate,
    Fleet,
    muster,
    phones,
    tiers,
)
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.parts.schedule import Buffered, Deadline, Sync
from fedquilt.schema import BadSetting
from fedquilt.store import flatten, restore

from ..laws.strategies import all_bits
from ..world import play, small, world

KEY = Key(5)
SIZES = {i: 10 + i * i for i in range(50)}


def made(fleet: str = "tiers", sizes: dict[int, int] = SIZES, **more: Any) -> Fleet:
    return muster(fleet, sizes, KEY, **more)


def share(fleet: Fleet, **kinds: Any) -> Counter[str]:
    return Counter(d.tier for d in fleet.devices.values())


# ---- profiles
def test_every_profile_says_where_its_figures_come_from() -> None:
    for name, d in PROFILES.items():
        assert d.tier == name and "assumed" in d.source and len(d.source) > 40
        assert d.idle < d.watts and d.up <= d.down
    order = ["raspberry-pi-4", "phone-low", "jetson-nano", "phone-middle", "phone-high"]
    assert sorted(PROFILES, key=lambda n: PROFILES[n].flops) == order


@pytest.mark.parametrize("bad", [{"flops": 0}, {"down": math.inf}, {"memory": -1}, {"radio": -1}, {"width": 1.5}])
def test_a_device_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Device(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_the_phones_have_the_three_counts_that_the_paper_gives(seed: int) -> None:
    every = phones(Key(seed))
    gigabytes = Counter(d.memory / 1e9 for d in every)
    clocks = [d.flops / (0.25 * 8e9) for d in every]
    mbps = [d.down * 8 / 1e6 for d in every]
    assert len(every) == 128 and gigabytes[3] == 41 == max(gigabytes.values())
    assert min(gigabytes) == 1 and max(gigabytes) == 12
    assert sum(2.0 <= c < 2.3 for c in clocks) == 33
    assert sum(m < 10 for m in mbps) == 48
    assert Counter(d.tier for d in every) == {f"T{k}": 16 for k in range(1, 9)}
    assert clocks == sorted(clocks), "T1 is the weakest"
    assert 40 < sum(d.plugged for d in every) < 90
    assert every == phones(Key(seed)) != phones(Key(seed + 1))


def test_phones_are_given_to_clients_once_each_and_the_paper_has_its_preferences() -> None:
    every = phones(KEY.at("phones128"))
    for text in ("phones128", "phones128:paper"):
        some = list(made(text).devices.values())
        assert len(some) == 50 and len({(d.flops, d.down) for d in some}) == 50
        assert all(d in every for d in some)
    assert all(d.plugged for d in some), "of 128 more than 50 are plugged in"
    cells = [d.network for d in some]
    assert Counter(cells).most_common(1)[0][1] <= 2
    with pytest.raises(ValueError, match="too few for 129 clients"):
        made("phones128", {i: 1 for i in range(129)})


# ---- tiers and levels
def test_tiers_are_even_and_independent_of_size_unless_asked() -> None:
    assert made("tiers:0.2,0.4,0.6,0.8,1") == tiers(SIZES, (0.2, 0.4, 0.6, 0.8, 1.0), KEY)
    assert share(made()) == {w: 10 for w in ("0.2", "0.4", "0.6", "0.8", "1")}
    by_size = made("tiers:by=size")
    assert [d.width for d in by_size.devices.values()] == [w for w in (0.2, 0.4, 0.6, 0.8, 1.0) for _ in range(10)]
    other = made("tiers:by=inverse-size")
    assert [d.width for d in other.devices.values()] == [w for w in (1.0, 0.8, 0.6, 0.4, 0.2) for _ in range(10)]
    again = muster("tiers", {i: 1000 - n for i, n in SIZES.items()}, KEY)
    assert again.devices == made().devices, "who gets which tier does not look at the data"


def test_levels_are_those_of_fedlps() -> None:
    assert LEVELS["high"] == (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1) and LEVELS["low"] == (1 / 2, 1)
    for level, widths in LEVELS.items():
        fleet = made(f"levels:{level}", {i: 1 for i in range(200)})
        assert {d.width for d in fleet.devices.values()} == set(widths) == set(fleet.widths)
        assert all(d.flops == d.width * 727e9 for d in fleet.devices.values())
        assert all(count > 100 / len(widths) for count in share(fleet).values())
    assert share(made("levels:high:by=size"))["1"] == 10


def test_profiles_are_spread_and_may_carry_widths() -> None:
    assert share(made("profiles:raspberry-pi-4,jetson-nano")) == {"raspberry-pi-4": 25, "jetson-nano": 25}
    fleet = made("profiles:jetson-nano:0.2,0.4,0.6,0.8,1")
    assert set(fleet.widths) == {0.2, 0.4, 0.6, 0.8, 1.0}
    assert {d.flops for d in fleet.devices.values()} == {PROFILES["jetson-nano"].flops}


@pytest.mark.parametrize("text", ["tiers:dynamic=true", "levels:high:dynamic=true"])
def test_dynamic_devices_are_drawn_again_in_every_round(text: str) -> None:
    fleet = made(text)
    rounds = [fleet.drawn(r, KEY) for r in range(6)]
    assert all(a.devices != b.devices for a, b in pairwise(rounds))
    assert rounds[3] == fleet.drawn(3, KEY) != fleet.drawn(3, KEY.at("other"))
    assert all(r.device(7, n, KEY) == r.devices[7] for n, r in enumerate(rounds))
    assert all(set(r.widths) == set(fleet.widths) for r in rounds)
    assert made().drawn(3, KEY) == made()
    seen = Counter(d.width for r in rounds for d in r.devices.values())
    assert len(seen) == 5 and min(seen.values()) > 30


# ---- the grammar
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tires", "no fleet is called 'tires'; did you mean 'tiers'"),
        ("tiers:0.2:rows=1", "has no setting 'rows'"),
        ("tiers:0,1", "a width is a share of the model"),
        ("tiers:by=weight", "one of random, size, inverse-size"),
        ("tiers:by=size:dynamic=true", "it cannot go by size"),
        ("levels:higher", "one of low, median, high"),
        ("profiles:jetson", "no device is called 'jetson'"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says.replace("(", r"\(")):
        made(text)


def test_the_tables_are_explicit_and_everything_in_them_can_be_made() -> None:
    assert {*FLEETS} == {"tiers", "levels", "profiles", "phones128"}
    for name in FLEETS:
        assert len(made(name)) == 50
    for name in AVAILABILITY.keys() - {"trace"}:
        assert made(availability=name).now(0, 0.0, KEY).devices == made().devices
    for name in STRAGGLERS:
        assert made(stragglers=name).fate(1, 0, KEY).slowdown in (1.0, 5.0)
    with pytest.raises(ValueError, match="dropout is a share"):
        made(dropout=1.5)
    with pytest.raises(BadSetting, match="factor"):
        made(stragglers="random:0.5:0.5")


# ---- who is there
def there(fleet: Fleet, round: int, clock: float) -> set[int]:
    return set(fleet.devices) - fleet.now(round, clock, KEY).away


def test_everybody_is_always_there_unless_something_is_said() -> None:
    assert there(made(), 3, 1e6) == set(SIZES) and made().wakes(7.0, KEY) == 7.0


def test_availability_is_a_pure_function_of_round_time_and_key() -> None:
    for text in ("random:0.5", "day-night", "by-width:0.1:0.9"):
        fleet = made(availability=text)
        assert fleet.now(4, 1e5, KEY) == fleet.now(4, 1e5, KEY)
        some = {frozenset(there(fleet, r, r * 9000.0)) for r in range(10)}
        assert len(some) > 5, "it changes"
        assert fleet.now(4, 1e5, KEY).away != fleet.now(4, 1e5, KEY.at("other")).away
        assert len(fleet.now(4, 1e5, KEY)) == 50, "who is away is still a client"


def test_random_availability_has_its_share_and_the_weak_are_there_less() -> None:
    rounds = [there(made(availability="random:0.3"), r, 0.0) for r in range(100)]
    assert 0.27 < sum(map(len, rounds)) / 5000 < 0.33
    fleet = made(availability="by-width:0.0:1.0")
    seen = Counter(fleet.devices[i].width for r in range(100) for i in there(fleet, r, 0.0))
    assert all(abs(seen[w] / 1000 - w) < 0.06 for w in seen) and len(seen) == 5


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_day_and_night_come_round(spread: float) -> None:
    fleet = made(availability=f"day-night:period=100:share=0.25:spread={spread}")
    hours = [there(fleet, 0, t + 0.5) for t in range(200)]
    assert hours[:100] == hours[100:]
    assert all(sum(i in h for h in hours) in (49, 50, 51) for i in SIZES)
    if spread == 0:
        assert all(len(h) == (50 if t % 100 < 25 else 0) for t, h in enumerate(hours))
        assert fleet.wakes(30.0, KEY) == 100.0 and fleet.wakes(10.0, KEY) == 10.0
    else:
        assert all(3 < len(h) < 25 for h in hours)
    for i in range(5):
        one = fleet.only([i])
        for clock in (0.0, 13.7, 77.7, 1e7 + 3):
            wakes = one.wakes(clock, KEY)
            assert clock <= wakes <= clock + 100 and there(one, 0, wakes) == {i}
            assert wakes == clock or not there(one, 0, (clock + wakes) / 2)


def test_plugged_phones_only() -> None:
    fleet = made("phones128", availability="plugged")
    assert there(fleet, 0, 0.0) == {i for i, d in fleet.devices.items() if d.plugged}
    battery = fleet.without(there(fleet, 0, 0.0))
    assert len(battery) and battery.wakes(0.0, KEY) == math.inf


CSV = "client,start,end\n1,10,20\n1,40,50\n3,0,45\n"
LINES = """{"client": 1, "start": 10, "end": 20}
{"client": 1, "start": 40, "end": 50}

{"client": 3, "start": 0, "end": 45}
"""


@pytest.mark.parametrize("text", [CSV, LINES])
def test_a_trace_is_read_from_either_form(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    fleet = made(availability=f"trace:{path}")
    at = {t: there(fleet, 0, float(t)) for t in (0, 10, 19, 20, 40, 45, 50)}
    assert at == {0: {3}, 10: {1, 3}, 19: {1, 3}, 20: {3}, 40: {1, 3}, 45: {1}, 50: set()}
    assert fleet.wakes(50.0, KEY) == math.inf and fleet.only([1]).wakes(21.0, KEY) == 40.0
    again = made(availability=f"trace:{path}:period=60")
    assert there(again, 0, 72.0) == {1, 3} and again.wakes(50.0, KEY) == 60.0 and again.only([1]).wakes(51, KEY) == 70.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "client,start,end\n1,10,20\n2,30,20\n",
            "line 3: a window starts at 0 or later, before its end, not 30.0 to 20.0",
        ),
        ("client,begin,end\n1,10,20\n", "line 2: a window is a client, a start and an end"),
        ("client,start,end\none,1,2\n", "line 2: a window is a client"),
        ('{"client": 1, "start": 1, "end": 2}\n{"client": 1,\n', "line 2 is not JSON"),
    ],
)
def test_a_bad_trace_names_its_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(BadSetting, match=says):
        made(availability=f"trace:{path}")
    with pytest.raises(BadSetting, match="cannot be read: No such file"):
        made(availability=f"trace:{path}.csv")


# ---- what becomes of an order
def test_drop_outs_and_stragglers_have_their_shares() -> None:
    fleet = made(dropout=0.2, stragglers="random:0.3:4")
    fates = [fleet.fate(i, r, KEY) for i in SIZES for r in range(40)]
    assert fates == [fleet.fate(i, r, KEY) for i in SIZES for r in range(40)]
    assert 0.17 < sum(f.dropped for f in fates) / 2000 < 0.23
    assert 0.27 < sum(f.slowdown == 4 for f in fates) / 2000 < 0.33
    assert {f.slowdown for f in fates} == {1.0, 4.0}
    fixed = made(stragglers="fixed:0.3:4")
    slow = [{fixed.fate(i, r, KEY).slowdown for r in range(10)} for i in SIZES]
    assert all(len(s) == 1 for s in slow) and 5 < sum(4.0 in s for s in slow) < 25
    assert made().fate(3, 3, KEY) == Fate()


# ---- in the simulator
def run(fleet: Fleet | None, rounds: int = 3, schedule: Any = None, **given: Any) -> Any:
    method = small(METHODS["fedavg"], **given)
    method = replace(method, schedule=schedule or method.schedule)
    sim = world(method, "mlp", fleet=fleet)
    return sim, *play(sim, rounds)


SMALL = {i: 14 for i in range(5)}


def outcomes(told: list[Any]) -> list[dict[str, int]]:
    return [r.record["outcomes"] for r in told]


def test_who_is_away_is_not_asked_and_a_round_without_anybody_goes_by() -> None:
    _, now, told = run(made(sizes=SMALL, availability="random:0.3"), 12)
    asked = [r.record["asked"] for r in told]
    assert [] in asked and now.state.round == 12 and now.state.stopped is None
    empty = told[asked.index([])].record
    assert empty["seconds"] == 0 and empty["merged"] == [] and empty["loss"] is None
    fleet = replace(made(sizes=SMALL), present=made(availability="random:0.0").present)
    assert run(fleet, 2)[1].state.round == 2


def test_the_clock_goes_on_to_who_comes_first() -> None:
    fleet = made(sizes=SMALL, availability="day-night:period=1000:share=0.1:spread=0")
    fleet = replace(fleet, devices={i: replace(d, down=100.0) for i, d in fleet.devices.items()})
    _, now, told = run(fleet, 8)
    assert all(r.record["asked"] == [0, 1, 2, 3, 4] for r in told)
    took = max(c["seconds"] for r in told for c in r.clients)
    waited = [r.record["seconds"] > took + 1 for r in told]
    assert 20 < took < 100 and any(waited) and not all(waited) and now.clock > 1000


def test_a_fleet_that_never_comes_back_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n2,100,100.001\n")
    _, now, told = run(made(sizes=SMALL, availability=f"trace:{path}"), 2)
    assert told[0].record["asked"] == [2] and told[0].record["seconds"] > 100
    assert now.state.stopped == "nobody will be there any more"


def test_a_dropped_client_costs_its_download_and_its_work_and_no_round_waits_for_ever() -> None:
    fleet = made(sizes=SMALL, dropout=0.5)
    whole = run(made(sizes=SMALL), 1)[2][0].clients[0]
    for schedule in (Sync(1.0), Deadline(1.0, seconds=5.0), Buffered(busy=3, k=1), Sync(0.5, over=2.0)):
        _, now, told = run(fleet, 6, schedule)
        records = [c for r in told for c in r.clients]
        lost = [c for c in records if c["outcome"] == "dropped"]
        assert lost and now.state.round == 6 and math.isfinite(now.clock)
        assert all(c["up"] == 0 and c["down"] > 0 and c["flops"] == whole["flops"] for c in lost)
        assert all(c["client"] not in r.record["merged"] for r in told for c in r.clients if c in lost)
    assert all(r.record["seconds"] <= 5.0 for r in run(fleet, 6, Deadline(1.0, seconds=5.0))[2])
    late = [r.record for r in run(fleet, 6, Deadline(1.0, seconds=5.0))[2] if "dropped" in r.record["outcomes"]]
    assert late and all(r["seconds"] == pytest.approx(5.0) for r in late), "nobody tells the lost from the slow"
    nobody = run(made(sizes=SMALL, dropout=1.0), 2)[1].state
    assert nobody.round == 2 and all_bits(dict(nobody.params)) == all_bits(dict(run(None, 0)[1].state.params))


def test_stragglers_take_longer_and_give_the_same_bits() -> None:
    _, plain, told = run(made(sizes=SMALL))
    _, slow, slower = run(made(sizes=SMALL, stragglers="fixed:1:7"))
    assert all_bits(dict(plain.state.params)) == all_bits(dict(slow.state.params))
    assert slow.clock == pytest.approx(7 * plain.clock)
    assert [c["joules"] * 7 for r in told for c in r.clients] == pytest.approx(
        [c["joules"] for r in slower for c in r.clients]
    )
    assert {c["slowdown"] for r in slower for c in r.clients} == {7.0}


def test_a_run_on_a_changing_fleet_goes_on_from_its_stored_state() -> None:
    fleet = made("tiers:dynamic=true", SMALL, availability="random:0.8", dropout=0.2, stragglers="random:0.5:3")
    for schedule in (None, Buffered(busy=3, k=2)):
        sim, now, _ = run(fleet, 4, schedule)
        half = flatten(packed(now))
        now, last = play(sim, 1, now)
        again, rest = play(sim, 1, unpacked(restore(*half)))
        assert all_bits(dict(now.state.params)) == all_bits(dict(again.state.params))
        assert [r.clients for r in last] == [r.clients for r in rest]


def test_a_dynamic_width_is_that_of_the_round_everywhere() -> None:
    fleet = made("tiers:dynamic=true", SMALL)
    sim = world(replace(small(METHODS["heterofl"]), norm="per-width"), "cnn", fleet=fleet)
    _, told = play(sim, 4)
    for r, report in enumerate(told):
        assert report.record["outcomes"] == {"accepted": 5}, report.clients
        drawn = fleet.drawn(r, sim.key.at("fleet"))
        assert [c["tier"] for c in sorted(report.clients, key=lambda c: c["client"])] == [
            d.tier for d in drawn.devices.values()
        ]
    assert len({c["tier"] for r in told for c in r.clients if c["client"] == 0}) > 1
