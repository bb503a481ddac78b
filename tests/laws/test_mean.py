"""The laws of the mean: per coordinate, over those who spoke; nobody spoke, nothing moves."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.cover import Axis, Cover, Params, mean, take
from fedquilt.fleet import Device, Fleet
from fedquilt.method import Method
from fedquilt.model import Model
from fedquilt.models import cnn, lstm, mlp
from fedquilt.parts.merge import CoverMean
from fedquilt.parts.stop import Plateau
from fedquilt.types import Reply, State

from .strategies import (
    FLOATS,
    WHOLE_NUMBERS,
    Fill,
    all_bits,
    any_bits,
    bits,
    covers,
    finite,
    law,
    like,
    models,
    ordinary,
    seeds,
)

COUNTS = st.integers(1, 2**53).map(float)
WEIGHTS = st.one_of(COUNTS, st.sampled_from((1.0, 3.0, 0.1, 1 / 3, 1e-3, 7e8)))

Said = tuple[Params, Cover, float]  # what a client became, whole; what it speaks of; what it weighs


def told(said: list[Said]) -> list[Said]:
    """What the mean is given: of each client the piece that it speaks of."""
    return [(take(p, c), c, n) for p, c, n in said]


@st.composite
def clients(
    draw: st.DrawFn, base: Params, fill: Fill, weights: st.SearchStrategy[float] = WEIGHTS, most: int = 4
) -> list[Said]:
    return [
        (like(base, fill, draw(seeds)), draw(covers(base)), draw(weights)) for _ in range(draw(st.integers(1, most)))
    ]


def usual(shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
    """Numbers such as a model has, laid out as torch does (numpy gives no strides to an empty tensor)."""
    return torch.empty(shape, dtype=dtype).copy_(ordinary(shape, dtype, rng))


def spoken(c: Cover, k: str, shape: torch.Size) -> Tensor:
    return c[k].dense() if k in c else torch.zeros(shape, dtype=torch.bool)


def step(dtype: torch.dtype, at: Tensor) -> Tensor:
    """The distance from one number of a floating type to the next, at these magnitudes."""
    info = torch.finfo(dtype)
    return at.double().abs().clamp(min=info.tiny) * info.eps


def near(a: Tensor, b: Tensor, scale: Tensor, steps: float = 1) -> bool:
    """Equal to a number of steps of the type, and to the rounding of float64 sums of numbers as large as ``scale``."""
    a64, b64 = a.double(), b.double()
    room = steps * step(a.dtype, torch.maximum(a64.abs(), b64.abs())) + 32 * 2.0**-53 * scale
    return bool(((a64 - b64).abs() <= room).all())


def largest(base: Params, said: list[Said], k: str) -> Tensor:
    """The largest magnitude at each place: the model's own, or a client's."""
    return torch.stack([base[k].double().abs(), *(p[k].double().abs() for p, _, _ in said)]).amax(0)


def far(t: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator) -> Tensor:
    """Any finite number; of float64 those whose differences are finite too."""
    x = finite(t, dtype, rng)
    return torch.where(x.abs() < 1e290, x, 1.0) if dtype == torch.float64 else x


# ---- nobody, and everybody as before
@law(40)
@given(models())
def test_the_mean_of_nobody_is_the_base(base: Params) -> None:
    assert all_bits(mean(base, [])) == all_bits(base)
    assert list(mean(base, [])) == list(base)


@law(120)
@given(st.data(), models(finite))
def test_what_everybody_returns_as_it_was_sent_does_not_move_by_a_bit(data: st.DataObject, base: Params) -> None:
    said = [(base, c, n) for _, c, n in data.draw(clients(base, finite))]
    assert all_bits(mean(base, told(said))) == all_bits(base)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", [(1.0,), (0.1, 0.7, 1 / 3), (2.0**53, 1.0, 3.0), (1e-3, 1e9, 17.0)])
def test_the_odd_numbers_do_not_move(dtype: torch.dtype, weights: tuple[float, ...]) -> None:
    info = torch.finfo(dtype)
    odd = [
        0.0,
        -0.0,
        info.smallest_normal,
        -info.smallest_normal / 4,
        info.smallest_normal * info.eps,
        info.max,
        info.min,
    ]
    base = {"w": torch.tensor([*odd, 1 / 3, -1 - info.eps], dtype=dtype)}
    assert bits(base["w"][:2]) != bits(torch.zeros(2, dtype=dtype))
    assert base["w"][3] != 0 and base["w"][4] != 0
    whole = Cover.whole(base)
    assert all_bits(mean(base, [(base, whole, n) for n in weights])) == all_bits(base)
    half = Cover.masks({"w": torch.arange(len(base["w"])) % 2 == 0})
    assert all_bits(mean(base, [(take(base, half), half, n) for n in weights])) == all_bits(base)


@pytest.mark.parametrize("dtype", WHOLE_NUMBERS)
def test_whole_numbers_do_not_move(dtype: torch.dtype) -> None:
    ends = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    base = {"n": torch.tensor([*ends, 0, 1], dtype=dtype)}
    assert all_bits(mean(base, [(base, Cover.whole(base), n) for n in (1 / 3, 2.0**53, 7.0)])) == all_bits(base)


@law(120)
@given(st.data(), models(any_bits))
def test_what_nobody_speaks_of_keeps_its_bits(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, usual))
    after = mean(base, told(said))
    assert list(after) == list(base)
    for k, v in base.items():
        silent = ~torch.stack([spoken(c, k, v.shape) for _, c, _ in said]).any(0)
        assert bits(after[k][silent]) == bits(v[silent]), k


def test_a_tensor_that_nobody_names_is_the_base() -> None:
    base = {"a": torch.tensor([float("nan"), -0.0]), "b": torch.ones(2), "step": torch.tensor(3)}
    after = mean(base, [({"b": torch.zeros(2)}, Cover.named(base, "b"), 1.0), ({}, Cover({}), 5.0)])
    assert bits(after["a"]) == bits(base["a"]) and bits(after["step"]) == bits(base["step"])
    assert after["b"].tolist() == [0, 0]


# ---- what it is where somebody spoke
@law(120)
@given(st.data(), models(usual))
def test_it_is_the_naive_mean_of_each_coordinate(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, usual))
    after = mean(base, told(said))
    for k, v in base.items():
        top, weight = torch.zeros(v.shape, dtype=torch.float64), torch.zeros(v.shape, dtype=torch.float64)
        for p, c, n in said:
            here = spoken(c, k, v.shape).double()
            top, weight = top + n * here * p[k].double(), weight + n * here
        naive = torch.where(weight > 0, top / weight, v.double())
        if v.is_floating_point():
            assert near(after[k], naive, largest(base, said, k)), k
        else:
            gap = (after[k].double() - naive).abs()
            assert bool((gap <= 0.5 + 1e-9).all()), k


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_the_exact_mean_to_the_nearest_number(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    base, *xs = (usual((40,), dtype, rng) for _ in range(5))
    weights = (17, 3, 401, 28)
    whole = Cover.whole({"w": (40,)})
    after = mean({"w": base}, [({"w": x}, whole, float(n)) for x, n in zip(xs, weights, strict=True)])["w"]
    for j in range(40):
        exact = sum(n * Fraction(float(x[j])) for x, n in zip(xs, weights, strict=True)) / sum(weights)
        sums = 8 * 2.0**-53 * max(abs(float(x[j])) for x in (base, *xs))
        room = 0.51 * float(step(dtype, after[j])) + (sums if dtype == torch.float64 else 0)
        assert abs(Fraction(float(after[j])) - exact) <= Fraction(room), j


@law(120)
@given(st.data(), models(far, FLOATS))
def test_it_lies_between_the_least_and_the_most_that_was_said(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, far))
    after = mean(base, told(said))
    for k, v in base.items():
        here = torch.stack([spoken(c, k, v.shape) for _, c, _ in said])
        values = torch.stack([p[k].double() for p, _, _ in said])
        least = torch.where(here, values, math.inf).amin(0).clamp(max=torch.finfo(torch.float64).max)
        most = torch.where(here, values, -math.inf).amax(0).clamp(min=torch.finfo(torch.float64).min)
        some = here.any(0)
        got, scale = after[k].double()[some], largest(base, said, k)[some]
        assert bool(got.isfinite().all())
        assert near(torch.minimum(torch.maximum(got, least[some]), most[some]).to(v.dtype), got.to(v.dtype), scale), k


@law(80)
@given(st.data(), models(usual, WHOLE_NUMBERS))
def test_a_mean_of_whole_numbers_lies_between_them(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, usual))
    after = mean(base, told(said))
    for k, v in base.items():
        here = torch.stack([spoken(c, k, v.shape) for _, c, _ in said])
        values = torch.stack([p[k].to(torch.int64) for p, _, _ in said])
        some, got = here.any(0), after[k].to(torch.int64)
        assert bool((got >= torch.where(here, values, 2**40).amin(0))[some].all()), k
        assert bool((got <= torch.where(here, values, -(2**40)).amax(0))[some].all()), k


@law(80)
@given(st.data(), models(usual), seeds)
def test_where_everybody_spoke_the_base_has_no_say(data: st.DataObject, base: Params, seed: int) -> None:
    said = [(p, Cover.whole(base), n) for p, _, n in data.draw(clients(base, usual))]
    other = like(base, usual, seed)
    one, two = mean(base, told(said)), mean(other, told(said))
    for k, v in base.items():
        if v.is_floating_point():
            assert near(one[k], two[k], torch.maximum(largest(base, said, k), largest(other, said, k))), k
        else:  # at most one apart, where the exact mean is a half to the last bit of a weight
            assert bool(((one[k].double() - two[k].double()).abs() <= 1).all()), k


@law(40)
@given(st.data(), models(usual))
def test_one_client_has_its_way(data: st.DataObject, base: Params) -> None:
    ((p, c, _),) = said = data.draw(clients(base, usual, most=1))
    after = take(mean(base, told(said)), c)
    for k, x in take(p, c).items():
        if x.is_floating_point():
            assert near(after[k], x, torch.maximum(take(base, c)[k].double().abs(), x.double().abs())), k
        else:
            assert torch.equal(after[k], x), k


# ---- weights
@law(80)
@given(st.data(), models(usual), st.integers(-40, 40), st.sampled_from((3.0, 0.1, 1 / 7)))
def test_only_the_ratio_of_weights_counts(data: st.DataObject, base: Params, power: int, factor: float) -> None:
    said = data.draw(clients(base, usual))
    after = mean(base, told(said))
    assert all_bits(mean(base, told([(p, c, n * 2.0**power) for p, c, n in said]))) == all_bits(after)
    scaled = mean(base, told([(p, c, n * factor) for p, c, n in said]))
    for k, v in base.items():
        if v.is_floating_point():
            assert near(scaled[k], after[k], largest(base, said, k)), k
        else:
            assert bool(((scaled[k].double() - after[k].double()).abs() <= 1).all()), k


@law(80)
@given(st.data(), models(usual), st.integers(1, 9))
def test_a_client_of_n_samples_is_n_clients_of_one(data: st.DataObject, base: Params, n: int) -> None:
    said = data.draw(clients(base, usual, weights=st.integers(1, 9).map(float)))
    p, c, _ = said[0]
    one, many = mean(base, told([(p, c, float(n)), *said[1:]])), mean(base, told([(p, c, 1.0)] * n + said[1:]))
    for k, v in base.items():
        if v.is_floating_point():
            assert near(one[k], many[k], largest(base, said, k)), k
        else:
            assert torch.equal(one[k], many[k]), k


def test_sample_counts_are_exact() -> None:
    base = {"w": torch.zeros(2, dtype=torch.float64), "n": torch.zeros(2, dtype=torch.int64)}
    whole = Cover.whole(base)
    one = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64), "n": torch.tensor([0, 4])}
    for n in (1, 3, 1_797, 2**52, 2**53 - 1):
        after = mean(base, [(base, whole, float(2**53 - n)), (one, whole, float(n))])
        assert after["w"].tolist() == [n / 2**53, 3 * n / 2**53]  # a weight in float32 would be another figure
        assert after["n"].tolist() == [0, round(Fraction(4 * n, 2**53))]
    for n in (2**24, 2**31):
        after = mean(base, [(base, whole, float(n)), (one, whole, float(n + 1))])  # n + 1 is no float32 number
        assert after["w"][0] == (n + 1) / (2 * n + 1)


@law(40)
@given(st.data(), models(finite))
def test_where_all_weights_are_nothing_nothing_moves(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, any_bits, weights=st.sampled_from((0.0, -0.0))))
    assert all_bits(mean(base, told(said))) == all_bits(base)


@law(80)
@given(st.data(), models(finite, FLOATS))
def test_who_weighs_nothing_says_nothing(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, usual))
    silent = data.draw(clients(base, any_bits, weights=st.just(0.0)))  # not even NaN is heard
    assert all_bits(mean(base, told(silent + said + silent))) == all_bits(mean(base, told(said)))


@pytest.mark.parametrize("weight", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    base = {"w": torch.ones(2)}
    for others in ([], [(base, Cover.whole(base), 1.0)]):
        with pytest.raises(ValueError, match="a weight is a finite number, at least 0, not"):
            mean(base, [*others, (base, Cover.whole(base), weight)])
    with pytest.raises(ValueError, match="a weight is a finite number"):
        mean(base, [({}, Cover({}), weight)])


# ---- full and partial clients: 2 and 10 make 6, whoever comes first
def patches() -> dict[str, tuple[Model | Params, Cover, Cover]]:
    """What a full client speaks of, and a partial one, in nets of every kind of axis."""
    conv = cnn((1, 8, 8), 5, (4, 6), (7,))
    text = lstm(11, 5, (6,))
    dense = mlp(12, (5,), 3)
    p = {"w": torch.zeros(4, 6), "b": torch.zeros(5)}
    table = {"w": (Axis("o"), Axis("i", 2)), "b": (None,)}
    out = {name: (m, m.whole, m.prefix(0.5)) for name, m in (("cnn", conv), ("lstm", text), ("mlp", dense))}
    odd = {"conv1": torch.tensor([1, 3]), "conv2": torch.tensor([0, 2, 5]), "dense1": torch.tensor([6, 1])}
    out["scattered units"] = conv, conv.whole, conv.cover(odd)
    out["LSTM repeats"] = text, text.whole, text.cover({"lstm1": torch.tensor([0, 4])})
    out["flatten blocks"] = (
        conv,
        conv.whole,
        conv.cover({"conv2": torch.tensor([4, 1])}) & Cover.named(conv.shapes, "d*"),
    )
    mask = {"w": (torch.arange(4)[:, None] + torch.arange(6)) % 2 == 0, "b": torch.arange(5) % 2 == 0}
    block = Cover.units(p, table, {"o": torch.tensor([3, 0]), "i": torch.tensor([1])})
    out["mask"] = p, Cover.whole(p), Cover.masks(mask)
    out["mask in block"] = p, block, block & Cover.masks(mask)
    lattice = Cover.masks(mask) & Cover.named(p, "w")
    out["block in mask"] = p, lattice, lattice & Cover.units(p, {"w": (None, Axis("i", 3))}, {"i": torch.tensor([1])})
    return out


@pytest.mark.parametrize("name", patches())
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_two_and_ten_make_six_in_either_order(name: str, dtype: torch.dtype) -> None:
    net, full, partial = patches()[name]
    shapes = dict(net.shapes) if isinstance(net, Model) else {k: tuple(v.shape) for k, v in net.items()}
    base, two, ten = ({k: torch.full(s, x, dtype=dtype) for k, s in shapes.items()} for x in (3, 2, 10))
    assert partial <= full and 0 < partial.numel < full.numel
    said = [(two, full, 40.0), (ten, partial, 40.0)]
    for order in (said, said[::-1]):
        after = mean(base, told(order))
        for k, v in after.items():
            outside = torch.where(spoken(full, k, v.shape), 2, 3)
            assert v.dtype == dtype
            assert torch.equal(v, torch.where(spoken(partial, k, v.shape), 6, outside).to(dtype)), k


def test_the_patches_are_of_the_kinds_that_they_are_named_after() -> None:
    table = patches()
    conv, _, scattered = table["scattered units"]
    assert isinstance(conv, Model)
    assert {scattered[k].kind for k in ("conv2.conv.weight", "conv2.conv.bias", "dense1.linear.weight")} == {"block"}
    assert conv.axes["dense1.linear.weight"][1] == Axis("conv2", 4)
    assert scattered["dense1.linear.weight"].piece == (2, 12)
    assert table["LSTM repeats"][2]["lstm1.weight_hh_l0"].piece == (8, 2)
    assert table["LSTM repeats"][2]["lstm1.bias_ih_l0"].piece == (8,)
    assert set(table["flatten blocks"][2]) == {"dense1.linear.weight", "dense1.linear.bias"}
    assert table["mask"][2].kinds >= {"mask"} and table["mask in block"][2].kinds >= {"mask"}


# ---- whole numbers
@pytest.mark.parametrize("base", [-3, 0, 1, 2, 7])
@pytest.mark.parametrize(
    ("values", "rounded"), [((1, 2), 2), ((2, 3), 2), ((-1, 0), 0), ((-2, -1), -2), ((5, 6, 6), 6), ((5, 5, 6), 5)]
)
def test_whole_numbers_are_rounded_whatever_the_base_and_the_order(
    base: int, values: tuple[int, ...], rounded: int
) -> None:
    whole = Cover.whole({"n": ()})
    for order in itertools.permutations(values):
        after = mean({"n": torch.tensor(base)}, [({"n": torch.tensor(v)}, whole, 6.0) for v in order])
        assert after["n"].item() == rounded and after["n"].dtype == torch.int64


def test_large_counters_are_averaged_exactly() -> None:
    big = 2**60
    base = {"n": torch.tensor([big, -big])}
    said = [({"n": base["n"] + d}, Cover.whole(base), 1.0) for d in (10, 21)]
    assert mean(base, said)["n"].tolist() == [big + 16, -big + 16]


def test_bytes_and_booleans_stay_in_their_range() -> None:
    base = {"u": torch.tensor([0, 255], dtype=torch.uint8), "b": torch.tensor([False, True])}
    ends = {"u": torch.tensor([255, 0], dtype=torch.uint8), "b": torch.tensor([True, False])}
    whole = Cover.whole(base)
    after = mean(base, [(ends, whole, 3.0), (base, whole, 1.0)])
    assert after["u"].tolist() == [191, 64] and after["b"].tolist() == [True, False]
    assert mean(base, [(ends, whole, 1.0), (base, whole, 3.0)])["b"].tolist() == [False, True]


# ---- what goes in and what comes out
@law(40)
@given(st.data(), models(usual))
def test_inputs_are_left_alone(data: st.DataObject, base: Params) -> None:
    said = told(data.draw(clients(base, usual)))
    before, sent = all_bits(base), [(all_bits(p), c.encode(), n) for p, c, n in said]
    after = mean(base, said)
    assert all_bits(base) == before and [(all_bits(p), c.encode(), n) for p, c, n in said] == sent
    for k in after:
        named = [c for _, c, _ in said if k in c]
        assert not named or after[k].data_ptr() != base[k].data_ptr() or not after[k].numel()


@law(40)
@given(st.data(), models(usual))
def test_the_dtype_and_shape_are_the_bases(data: st.DataObject, base: Params) -> None:
    said = told(data.draw(clients(base, usual)))
    wide = [({k: v.double() if v.is_floating_point() else v for k, v in p.items()}, c, n) for p, c, n in said]
    after = mean(base, said)
    assert {k: (v.dtype, v.shape) for k, v in after.items()} == {k: (v.dtype, v.shape) for k, v in base.items()}
    assert all_bits(mean(base, wide)) == all_bits(after)


@law(40)
@given(st.data(), models(usual))
def test_the_clients_may_come_one_at_a_time(data: st.DataObject, base: Params) -> None:
    said = told(data.draw(clients(base, usual)))
    assert all_bits(mean(base, iter(said))) == all_bits(mean(base, said))


# ---- the step of a method
def reply(client: int, said: Said, round: int = 4) -> Reply:
    p, c, n = said
    losses = {"loss": 0.1 * client, "val_loss": 1.0 / (1 + client)}
    return Reply(client, round, take(p, c), c, n, losses)


def after_step(method: Method, state: State, fleet: Fleet, replies: list[Reply]) -> object:
    new = method.step(state, fleet, replies)
    return new.round, all_bits(new.params), repr(new.notes), new.stopped, repr(new.versions)


METHODS = {"samples": Method("samples"), "uniform": Method("uniform", merge=CoverMean("uniform"), stop=Plateau())}


@pytest.mark.parametrize("name", METHODS)
@law(25)
@given(st.data(), models(usual, (torch.float64, torch.float32, torch.int64)))
def test_a_step_does_not_depend_on_the_order_of_replies(name: str, data: st.DataObject, base: Params) -> None:
    fleet = Fleet({i: Device() for i in range(4)})
    said = [(like(base, usual, data.draw(seeds)), data.draw(covers(base)), data.draw(WEIGHTS)) for _ in range(4)]
    replies = [reply(i, s) for i, s in enumerate(said)]
    replies[3] = replace(reply(1, said[3]), round=3)  # the same client, of an earlier round
    state = State(5, base, {"stop": {"loss": {1: 0.2, 2: 0.4}, "retired": [], "reached": None}})
    results = [after_step(METHODS[name], state, fleet, list(order)) for order in itertools.permutations(replies)]
    assert all(r == results[0] for r in results)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_of_ten_replies_does_not_depend_on_their_order(name: str) -> None:
    m = cnn((1, 8, 8), 5, (4, 6), (7,))
    rng = np.random.default_rng(3)
    base = {k: v.double() for k, v in m.params().items()}
    fleet = Fleet({i: Device() for i in range(10)})
    replies = []
    for i in range(10):
        c = m.prefix(float(rng.choice([0.2, 0.5, 1.0])))
        if i % 3 == 0:
            c = c & Cover.masks({k: torch.from_numpy(rng.random(s) < 0.5) for k, s in m.shapes.items()})
        replies.append(reply(i, (like(base, usual, i), c, float(rng.integers(1, 900)))))
    state = State(5, base)
    first = after_step(METHODS[name], state, fleet, replies)
    for _ in range(30):
        assert after_step(METHODS[name], state, fleet, [replies[j] for j in rng.permutation(10)]) == first
    # and it could: these sums differ in their last bits from order to order
    assert (
        len({str(all_bits(METHODS[name].merge(state, [replies[j] for j in rng.permutation(10)]))) for _ in range(5)})
        > 1
    )


@law(40)
@given(st.data(), models(usual))
def test_uniform_asks_nobody_how_many_samples_it_has(data: st.DataObject, base: Params) -> None:
    said = data.draw(clients(base, usual, weights=st.sampled_from((0.0, 1.0, 17.0, 2.0**53))))
    replies, state = [reply(i, s) for i, s in enumerate(said)], State(0, base)
    assert all_bits(CoverMean("uniform")(state, replies)) == all_bits(
        mean(base, told([(p, c, 1.0) for p, c, _ in said]))
    )
    assert all_bits(CoverMean()(state, replies)) == all_bits(CoverMean("samples")(state, replies))
    assert all_bits(CoverMean()(state, replies)) == all_bits(mean(base, told(said)))


def test_uniform_and_samples_by_hand() -> None:
    base = {"w": torch.zeros(3)}
    part = Cover.masks({"w": torch.tensor([True, True, False])})
    replies = [
        Reply(0, 0, {"w": torch.tensor([2.0, 2.0])}, part, 3.0),
        Reply(1, 0, {"w": torch.tensor([10.0, -2.0, 4.0])}, Cover.whole(base), 1.0),
    ]
    assert CoverMean()(State(0, base), replies)["w"].tolist() == [4, 1, 4]
    assert CoverMean("uniform")(State(0, base), replies)["w"].tolist() == [6, 0, 4]
