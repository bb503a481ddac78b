"""Who has which device: tiers as large as one another, whatever data their clients have, the same in every run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.fleet import Device, Fleet, tiers
from fedquilt.key import Key

from .laws.strategies import law, seeds

WIDTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
IDS = st.lists(st.integers(0, 500), min_size=1, max_size=40, unique=True)


def widths(fleet: Fleet) -> dict[int, float]:
    return {i: d.width for i, d in fleet.devices.items()}


# ---- tiers
@law()
@given(IDS, st.integers(1, 6), seeds)
def test_tiers_are_as_large_as_one_another(ids: list[int], n: int, seed: int) -> None:
    chosen = [(k + 1) / n for k in range(n)]
    fleet = tiers(dict.fromkeys(ids, 10), chosen, Key(seed))
    counts = Counter(widths(fleet).values())
    sizes = [counts[w] for w in chosen]
    assert list(fleet.devices) == sorted(ids) and sum(sizes) == len(ids) == len(fleet)
    assert max(sizes) - min(sizes) <= 1


@law()
@given(IDS, st.data(), seeds)
def test_tiers_do_not_go_by_how_much_data_a_client_has(ids: list[int], data: st.DataObject, seed: int) -> None:
    few = {i: data.draw(st.integers(1, 5)) for i in ids}
    many = {i: data.draw(st.integers(6, 10**6)) for i in data.draw(st.permutations(ids))}
    a, b = tiers(few, WIDTHS, Key(seed)), tiers(many, WIDTHS, Key(seed))
    assert a.devices == b.devices and list(a.devices) == list(b.devices)
    assert (a.sizes, b.sizes) == (few, many)


def test_over_many_keys_every_client_is_in_every_tier() -> None:
    sizes = {i: 10 + 100 * i for i in range(10)}
    seen = [widths(tiers(sizes, WIDTHS, Key(s))) for s in range(400)]
    for i in sizes:
        counts = Counter(w[i] for w in seen)
        assert all(45 < counts[w] < 120 for w in WIDTHS), i  # 80 each, give or take
    data = [sum(sizes[i] for i in sizes if w[i] == 1.0) for w in seen]
    assert abs(sum(data) / len(data) - sum(sizes.values()) / 5) < 50


def test_tiers_are_repeatable() -> None:
    sizes = dict.fromkeys(range(12), 7)
    assert tiers(sizes, WIDTHS, Key(3)) == tiers(sizes, list(WIDTHS), Key(3))
    assert tiers(sizes, WIDTHS, Key(3)) != tiers(sizes, WIDTHS, Key(4))
    golden = [1.0, 0.6, 0.4, 0.6, 0.2, 0.2, 0.2, 0.8, 1.0, 0.8, 0.4, 0.6]
    assert list(widths(tiers(sizes, WIDTHS, Key(0))).values()) == golden


def test_speed_and_memory_go_with_the_width_squared() -> None:
    for d in tiers(dict.fromkeys(range(10), 7), WIDTHS, Key(0)).devices.values():
        assert d.flops == pytest.approx(1e9 * d.width**2) and d.memory == pytest.approx(1e9 * d.width**2)
        assert d.tier == f"{d.width:g}"


def test_one_width_is_everybodys() -> None:
    assert set(widths(tiers(dict.fromkeys(range(5), 1), [0.5], Key(0))).values()) == {0.5}
    assert len(tiers({}, WIDTHS, Key(0))) == 0


# ---- devices and fleets
@pytest.mark.parametrize("width", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_a_width_is_a_share_of_the_model(width: float) -> None:
    with pytest.raises(ValueError, match="a width is a share of the model, above 0 and at most 1, not"):
        Device(width)
    with pytest.raises(ValueError, match="a width is a share"):
        tiers({0: 1}, [width], Key(0))


def test_a_part_of_a_fleet_is_a_fleet() -> None:
    fleet = tiers({i: i + 1 for i in range(6)}, WIDTHS, Key(0))
    some, rest = fleet.only({1, 4, 99}), fleet.without({1, 4, 99})
    assert list(some.devices) == [1, 4] and list(rest.devices) == [0, 2, 3, 5] and len(fleet) == 6
    assert {**some.devices, **rest.devices} == dict(fleet.devices)
    assert some.sizes == rest.sizes == fleet.sizes
    assert len(fleet.only([])) == 0 and fleet.without([]) == fleet
