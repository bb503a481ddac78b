"""The laws of keys: equal path, equal stream, in any order and process; nothing global is used."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.key import Key

from .strategies import law

STEPS = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=6), st.sampled_from((0.3, True, None, "1", 1, "")))
PATHS = st.lists(STEPS, max_size=4)

# What is drawn at a place, fixed forever: seed, steps, number, permutation of 8, uniform, Philox's first number.
GOLDEN: list[tuple[int, tuple[object, ...], int, list[int], float, int]] = [
    (0, (), 1380287601958038609, [4, 7, 5, 6, 0, 1, 2, 3], 0.4067481720617109, 2102736155065376282),
    (
        0,
        ("round", 3, "client", 7),
        8954952898006707804,
        [6, 7, 1, 4, 0, 3, 5, 2],
        0.6598540315541881,
        4893841536629331688,
    ),
    (1, ("select",), 6645673352321814416, [4, 6, 0, 2, 5, 3, 1, 7], 0.9554657334046475, 795373654632556627),
    (-5, ("größe", 0.5, ""), 3745605372826055663, [4, 2, 5, 7, 0, 6, 1, 3], 0.3330365229989136, 607708706804312776),
    (
        18446744073709551616,
        ("a", "a", "a"),
        3621836151118369070,
        [0, 3, 1, 2, 5, 7, 4, 6],
        0.5658724773225863,
        8808870826482293710,
    ),
]


def drawn(key: Key) -> list[object]:
    """All that a key gives."""
    return [
        key.number(),
        key.permutation(8).tolist(),
        key.uniform(),
        int(key.numpy().integers(2**63)),
        key.numpy().normal(),
        torch.randn(3, generator=key.torch()).tolist(),
    ]


# ---- equal paths
@law()
@given(st.integers(-(2**65), 2**65), PATHS)
def test_an_equal_path_is_an_equal_stream(seed: int, path: list[object]) -> None:
    a, b = Key(seed).at(*path), Key(seed).at(*path)
    assert a == b and hash(a) == hash(b)
    assert drawn(a) == drawn(b)


@law()
@given(st.integers(0, 9), PATHS, st.integers(0, 4))
def test_steps_one_by_one_or_at_once_lead_to_the_same_place(seed: int, path: list[object], cut: int) -> None:
    one = Key(seed)
    for step in path:
        one = one.at(step)
    assert one == Key(seed).at(*path) == Key(seed).at(*path[:cut]).at(*path[cut:])
    assert one.number() == Key(seed).at(*path).number()
    assert Key(seed).at(*path).at() == Key(seed).at(*path)


def test_a_number_and_its_text_are_the_same_step() -> None:
    assert Key(0).at("round", 3) == Key(0).at("round", "3") == Key(0).at("round", np.int64(3))
    assert drawn(Key(0).at(3, 0.25)) == drawn(Key(0).at("3", "0.25"))


def test_what_was_drawn_before_changes_nothing() -> None:
    places = [Key(4).at("client", i) for i in range(6)]
    forwards = [drawn(k) for k in places]
    backwards = [drawn(k) for k in places[::-1]][::-1]
    assert forwards == backwards == [drawn(k) for k in places]
    key = places[0]
    used = key.torch()
    torch.rand(100, generator=used)
    assert torch.equal(torch.rand(3, generator=key.torch()), torch.rand(3, generator=places[0].torch()))
    assert key.at("x").number() == Key(4).at("client", 0, "x").number()


# ---- different paths
@law(300)
@given(st.integers(0, 3), PATHS, st.integers(0, 3), PATHS)
def test_different_paths_are_different_streams(s: int, a: list[object], t: int, b: list[object]) -> None:
    x, y = Key(s).at(*a), Key(t).at(*b)
    same = (s, [str(i) for i in a]) == (t, [str(i) for i in b])
    assert (x == y) == same == (x.number() == y.number())


def test_where_a_step_ends_counts() -> None:
    places = [
        Key(1), Key(11), Key(0).at("ab", "c"), Key(0).at("a", "bc"), Key(0).at("abc"), Key(0).at("c", "ab"), Key(0),
        Key(0).at(""), Key(0).at("", ""), Key(1).at(1), Key(-1), Key(0).at("1"), Key(0).at("01"),
        Key(0).at("round", 12), Key(0).at("round", 1, 2), Key(0).at("\0"), Key(0).at("é"), Key(0).at("e\u0301"),
    ]  # fmt: skip
    assert len({k.number() for k in places}) == len(places)
    assert len({tuple(k.permutation(30).tolist()) for k in places}) == len(places)
    assert len({k.uniform() for k in places}) == len(places)


def test_many_clients_and_rounds_do_not_meet() -> None:
    numbers = {Key(s).at("round", r, "client", c).number() for s in range(5) for r in range(40) for c in range(100)}
    assert len(numbers) == 5 * 40 * 100
    assert all(0 <= n < 2**63 for n in numbers) and max(numbers) > 2**62


# ---- what is drawn
def test_what_is_drawn_looks_random() -> None:
    draws = np.array([Key(0).at("u", i).uniform() for i in range(2000)])
    assert ((draws >= 0) & (draws < 1)).all()
    counts = np.histogram(draws, 10, (0, 1))[0]
    assert ((counts > 140) & (counts < 260)).all()
    assert (draws * 2**24 % 1 > 0).any()  # a float32 would have no more than 24 bits
    firsts = np.bincount([int(Key(0).at("p", i).permutation(5)[0]) for i in range(2000)], minlength=5)
    assert ((firsts > 320) & (firsts < 480)).all()


@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_a_permutation_holds_every_number_once(n: int) -> None:
    p = Key(3).at(n).permutation(n)
    assert p.dtype == torch.int64 and p.sort().values.tolist() == list(range(n))


# ---- every process
@pytest.mark.parametrize(("seed", "path", "number", "permutation", "uniform", "philox"), GOLDEN)
def test_golden_values(
    seed: int, path: tuple[object, ...], number: int, permutation: list[int], uniform: float, philox: int
) -> None:
    key = Key(seed).at(*path)
    assert key.number() == number
    assert key.permutation(8).tolist() == permutation
    assert key.uniform() == uniform
    assert int(key.numpy().integers(2**63)) == philox


_CHILD = """
import json, random, sys
import numpy as np, torch
torch.manual_seed(99), np.random.seed(99), random.seed(99)
from fedquilt.key import Key
from tests.laws.test_key import drawn
torch.rand(7)
print(json.dumps([drawn(Key(seed).at(*path)) for seed, path in reversed(json.loads(sys.argv[1]))]))
"""


def test_another_process_draws_the_same() -> None:
    places: list[tuple[int, list[object]]] = [(0, []), (0, ["round", 3, "client", 7]), (2**70, ["größe", ""])]
    there = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CHILD, json.dumps(places)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == [drawn(Key(seed).at(*path)) for seed, path in places[::-1]]


# ---- nothing global
def test_no_global_generator_is_used_or_moved() -> None:
    key = Key(8).at("here")
    generators = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def state() -> str:
        return repr((torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()))

    before = state()
    here = drawn(key)
    assert state() == before
    try:
        for seed in (1, 2):
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            assert drawn(key) == here
    finally:
        torch.set_rng_state(generators[0])
        np.random.set_state(generators[1])
        random.setstate(generators[2])


def test_a_key_does_not_change() -> None:
    key = Key(1).at("a")
    with pytest.raises(AttributeError):
        key.seed = 2  # type: ignore[misc]
    assert (key.seed, key.path) == (1, ("a",)) and {key: 1}[Key(1).at("a")] == 1
