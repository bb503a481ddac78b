"""The laws of data: every sample has one owner, parts keep their shares, and what is wrong is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.data import SOURCES, Dataset, Shards, deal, digits, dirichlet, iid, load, split
from fedquilt.data.partition import parse
from fedquilt.data.shard import SPLITS
from fedquilt.data.shard import parse as parse_split
from fedquilt.key import Key
from fedquilt.task import Classification, NextToken, Regression
from fedquilt.types import Handle

from .strategies import bits, law, seeds

KEY = Key(5)


def classes(n: int, c: int, key: Key = KEY) -> Tensor:
    return torch.randint(c, (n,), generator=key.at("labels", n, c).torch())


def blobs(n: int = 60, c: int = 4) -> Dataset:
    x = torch.randn(n, 2, 3, generator=KEY.at("x").torch())
    return Dataset("blobs", x, classes(n, c), Classification(c), (2, 3), c)


def owned_once(parts: list[Tensor], n: int) -> bool:
    return torch.cat(parts).sort().values.tolist() == list(range(n))


RULES: dict[str, Callable[[Tensor, int, Key], list[Tensor]]] = {
    "iid": iid,
    "dirichlet": partial(dirichlet, alpha=0.3, least=2),
    "sharp": partial(dirichlet, alpha=1e-3, least=1),
    "flat": partial(dirichlet, alpha=1e6, least=1),
}


# ---- partitions
@pytest.mark.parametrize("rule", RULES)
@law(60)
@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 6), seeds)
def test_every_sample_has_one_owner(rule: str, samples: int, n: int, c: int, seed: int) -> None:
    assume(samples >= 2 * n)
    y = classes(samples, c)
    before = bits(y)
    parts = RULES[rule](y, n, Key(seed))
    assert len(parts) == n and owned_once(parts, samples)
    assert all(p.dtype == torch.int64 and torch.equal(p, p.sort().values) for p in parts)
    assert bits(y) == before
    assert all(torch.equal(a, b) for a, b in zip(parts, RULES[rule](y, n, Key(seed)), strict=True))


def test_another_key_is_another_distribution() -> None:
    y = classes(120, 5)
    for rule in RULES.values():
        a, b = rule(y, 6, Key(0)), rule(y, 6, Key(1))
        assert not all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@law(60)
@given(st.integers(1, 200), st.integers(1, 20), seeds)
def test_iid_is_even(samples: int, n: int, seed: int) -> None:
    assume(samples >= n)
    sizes = [len(p) for p in iid(classes(samples, 3), n, Key(seed))]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_iid_mixes() -> None:
    y = torch.arange(1000) // 100  # sorted by class
    for p in iid(y, 5, KEY):
        counts = y[p].bincount(minlength=10)
        assert len(p) == 200 and bool((counts > 5).all()) and bool((counts < 40).all())


@law(100)
@given(
    st.integers(1, 10), st.integers(1, 12), st.sampled_from((1e-300, 1e-3, 0.1, 0.3, 1.0, 50.0, 1e6)),
    st.integers(1, 8), st.integers(0, 60), seeds,
)  # fmt: skip
def test_nobody_has_fewer_than_the_least(n: int, least: int, alpha: float, c: int, more: int, seed: int) -> None:
    y = classes(n * least + more, c)
    parts = dirichlet(y, n, Key(seed), alpha, least)
    assert owned_once(parts, len(y)) and min(len(p) for p in parts) >= least


def test_the_least_takes_no_more_than_it_must() -> None:
    y = classes(400, 5)
    for alpha in (0.05, 0.3):
        free = [set(p.tolist()) for p in dirichlet(y, 12, KEY, alpha, 1)]
        kept = [set(p.tolist()) for p in dirichlet(y, 12, KEY, alpha, 15)]
        lost = [a - b for a, b in zip(free, kept, strict=True)]
        won = [b - a for a, b in zip(free, kept, strict=True)]
        assert any(lost)
        for a, b, less, more in zip(free, kept, lost, won, strict=True):
            assert not (less and more)  # who gives does not get
            assert not more or len(b) == 15  # who gets, gets as much as it lacks
            assert not less or len(a) > len(b) >= 15


def shares(c: int, n: int, alpha: float, key: Key) -> np.ndarray:
    """Each client's share of a class, drawn again by this file's own hand."""
    out: np.ndarray = key.at("class", c).at("shares").numpy().dirichlet(np.full(n, alpha))
    return out


@law(60)
@given(st.integers(1, 9), st.sampled_from((0.3, 1.0, 20.0)), st.integers(1, 4), seeds)
def test_a_classs_shares_are_those_that_were_drawn(n: int, alpha: float, c: int, seed: int) -> None:
    y = classes(50 * n * c, c)
    parts = dirichlet(y, n, Key(seed), alpha, 1)
    sizes = torch.stack([y[p].bincount(minlength=c) for p in parts])
    expected = []
    for k in range(c):
        mine = int((y == k).sum())
        ends = np.floor(np.append(shares(k, n, alpha, Key(seed)).cumsum()[:-1].clip(max=1), 1) * mine + 0.0)
        expected.append(np.diff(ends, prepend=0))
    wanted = np.stack(expected, 1)
    assume(wanted.sum(1).min() >= 1)  # else the least binds
    assert sizes.tolist() == wanted.astype(int).tolist()
    for k in range(c):
        exact = shares(k, n, alpha, Key(seed)) * int((y == k).sum())
        assert np.abs(sizes[:, k].numpy() - exact).max() <= 1


def test_small_alpha_is_skewed_and_large_alpha_is_even() -> None:
    y = torch.arange(3000) % 6

    def top(alpha: float) -> float:
        parts = dirichlet(y, 10, KEY, alpha, 1)
        return float(np.mean([int(y[p].bincount(minlength=6).max()) / len(p) for p in parts]))

    assert top(0.01) > 0.7 > top(0.5) > 0.25 > top(1e4) > 1 / 6


def test_a_class_is_shared_out_whatever_the_others_are() -> None:
    y = torch.arange(600) % 3
    other = torch.where(y == 2, 7, y)  # the last class under another name
    a, b = dirichlet(y, 5, KEY, 1.0, 1), dirichlet(other, 5, KEY, 1.0, 1)
    for k in (0, 1):
        assert [p[y[p] == k].tolist() for p in a] == [p[y[p] == k].tolist() for p in b]
    assert [p[y[p] == 2].tolist() for p in a] != [p[y[p] == 2].tolist() for p in b]


@pytest.mark.parametrize(
    ("wrong", "say"),
    [
        (lambda: iid(classes(3, 2), 4, KEY), "3 samples cannot give 4 clients 1 each: take at most 3 clients"),
        (lambda: iid(classes(3, 2), 0, KEY), "at least 1 client, not 0"),
        (lambda: dirichlet(classes(39, 2), 4, KEY), "10 each: take at most 3 clients, or a smaller least than 10"),
        (lambda: dirichlet(classes(9, 2), 4, KEY), "9 .* give 4 clients 10 each: take a smaller least than 10"),
        (lambda: dirichlet(classes(99, 2), 4, KEY, 0.0), "alpha of a Dirichlet partition is a number above 0, not 0"),
        (lambda: dirichlet(classes(99, 2), 4, KEY, float("nan")), "alpha .* not nan"),
        (lambda: dirichlet(classes(99, 2), 4, KEY, 0.3, 0), "least, .* is at least 1, not 0"),
        (lambda: dirichlet(torch.rand(99), 4, KEY), "it needs one whole-numbered label a sample"),
        (lambda: dirichlet(torch.zeros(99, 2).long(), 4, KEY), "it needs one whole-numbered label a sample"),
    ],
)  # fmt: skip
def test_a_partition_that_cannot_be_is_explained(wrong: Callable[[], object], say: str) -> None:
    with pytest.raises(ValueError, match=say):
        wrong()


def test_iid_needs_no_classes() -> None:
    assert owned_once(iid(torch.rand(20), 3, KEY), 20) and owned_once(iid(torch.zeros(20, 5), 3, KEY), 20)


# ---- partitions by name
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("iid", iid),
        ("dirichlet", dirichlet),
        ("dirichlet:0.05", partial(dirichlet, alpha=0.05)),
        ("dirichlet:2:3", partial(dirichlet, alpha=2.0, least=3)),
    ],
)
def test_a_text_names_a_partition(text: str, rule: Callable[[Tensor, int, Key], list[Tensor]]) -> None:
    y = classes(200, 4)
    assert all(torch.equal(a, b) for a, b in zip(parse(text)(y, 5, KEY), rule(y, 5, KEY), strict=True))


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("dirchlet:0.3", "no partition is called 'dirchlet'; did you mean 'dirichlet'? There are: iid, dirichlet"),
        ("iidd", "no partition is called 'iidd'; did you mean 'iid'? There are: iid, dirichlet"),
        ("x", "no partition is called 'x'; There are: iid, dirichlet"),
        ("", "no partition is called ''; There are: iid, dirichlet"),
        ("iid:3", "partition 'iid:3' has too many settings; iid has none"),
        ("dirichlet:1:2:3", "partition 'dirichlet:1:2:3' has too many settings; it is dirichlet:ALPHA:LEAST"),
        ("dirichlet:much", "partition 'dirichlet:much': alpha is a number, not 'much'"),
        ("dirichlet:", "partition 'dirichlet:': alpha is a number, not ''"),
        ("dirichlet:0.3:1.5", "partition 'dirichlet:0.3:1.5': least is a whole number, not '1.5'"),
    ],
)
def test_a_text_that_names_no_partition_is_explained(text: str, say: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value).startswith(say)


# ---- splits
SHARES = st.sampled_from(
    (
        (0.6, 0.1, 0.3),
        (0.7, 0.0, 0.3),
        (0.01, 0.01, 0.98),
        (0.01, 0.98, 0.01),
        (0.98, 0.01, 0.01),
        (1 / 3, 1 / 3, 1 / 3),
    )
)


@law(200)
@given(st.integers(0, 60), SHARES, seeds)
def test_parts_do_not_overlap_and_have_their_shares(n: int, wanted: tuple[float, float, float], seed: int) -> None:
    rows = 100 + 3 * torch.arange(n)
    parts = split(rows, Key(seed), wanted)
    assert list(parts) == list(SPLITS)
    train, val, test = (parts[s] for s in SPLITS)
    if wanted[1] == 0:
        assert torch.equal(val, test)  # the test part doubles as validation
        val = val[:0]
    assert torch.cat([train, val, test]).sort().values.tolist() == rows.tolist()
    assert all(torch.equal(p, p.sort().values) for p in parts.values())
    if n >= 3:
        assert all(len(p) for p in parts.values())
    assert (len(train) > 0) == (n > 0) and (len(test) > 0) == (n > 1)
    if n >= 3:  # the share, rounded, but for the one sample that every part has
        assert abs(len(test) - min(max(1, wanted[2] * n), n - 2 + (wanted[1] == 0))) <= 0.5 + 1e-6
        assert abs(len(val) - min(max(1, wanted[1] * n), n - 1 - len(test))) <= 0.5 + 1e-6 or wanted[1] == 0
    again = split(rows, Key(seed), wanted)
    assert all(torch.equal(parts[s], again[s]) for s in SPLITS)


@pytest.mark.parametrize(
    ("n", "wanted", "sizes"),
    [
        (10, (0.6, 0.1, 0.3), (6, 1, 3)),
        (100, (0.6, 0.1, 0.3), (60, 10, 30)),
        (25, (0.6, 0.1, 0.3), (14, 3, 8)),  # halves are rounded up
        (1, (0.6, 0.1, 0.3), (1, 0, 0)),
        (2, (0.6, 0.1, 0.3), (1, 0, 1)),
        (3, (0.6, 0.1, 0.3), (1, 1, 1)),
        (4, (0.6, 0.1, 0.3), (2, 1, 1)),
        (5, (0.01, 0.01, 0.98), (1, 1, 3)),
        (5, (0.01, 0.98, 0.01), (1, 3, 1)),
        (10, (0.7, 0.0, 0.3), (7, 3, 3)),
        (2, (0.7, 0.0, 0.3), (1, 1, 1)),
        (5, (0.02, 0.0, 0.98), (1, 4, 4)),
    ],
)
def test_the_sizes_of_parts_by_hand(n: int, wanted: tuple[float, float, float], sizes: tuple[int, ...]) -> None:
    parts = split(torch.arange(n), KEY, wanted)
    assert tuple(len(parts[s]) for s in SPLITS) == sizes


def test_parts_are_dealt_at_random() -> None:
    rows = torch.arange(30)
    seen = {tuple(split(rows, KEY.at(i))["test"].tolist()) for i in range(20)}
    assert len(seen) == 20
    often = torch.stack([split(rows, KEY.at(i))["test"].bincount(minlength=30) for i in range(300)]).sum(0)
    assert bool((often > 50).all()) and bool((often < 130).all())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("60/10/30", (0.6, 0.1, 0.3)), ("70/0/30", (0.7, 0.0, 0.3)), ("12.5/12.5/75", (0.125, 0.125, 0.75))],
)
def test_a_text_says_the_shares_in_per_cent(text: str, wanted: tuple[float, ...]) -> None:
    assert parse_split(text) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("60/40", "a split is train/val/test in per cent, such as 60/10/30, not '60/40'"),
        ("60/10/30/0", "a split is train/val/test in per cent"),
        ("a/b/c", "a split is train/val/test in per cent, such as 60/10/30, not 'a/b/c'"),
        ("60/10/20", "adds up to 100 per cent; 60/10/20 does not"),
        ("0/50/50", "has a train and a test part"),
        ("90/10/0", "has a train and a test part"),
        ("80/-10/30", "80/-10/30 does not"),
        ("nan/0/30", "a split has a train and a test part"),
    ],
)
def test_a_split_that_is_none_is_explained(text: str, say: str) -> None:
    with pytest.raises(ValueError, match=say):
        parse_split(text)


def test_shares_are_checked_when_data_are_split() -> None:
    with pytest.raises(ValueError, match="50/0/60 does not"):
        split(torch.arange(9), KEY, (0.5, 0.0, 0.6))


# ---- shards
def parts_of(*clients: tuple[list[int], list[int], list[int]]) -> dict[int, dict[str, Tensor]]:
    return {
        i: {s: torch.tensor(rows, dtype=torch.int64) for s, rows in zip(SPLITS, p, strict=True)}
        for i, p in enumerate(clients)
    }


TWO = (([0, 5], [1], [2]), ([7, 3, 4], [6], [9, 8]))


@pytest.mark.parametrize("wanted", [(0.6, 0.1, 0.3), (0.7, 0.0, 0.3)])
def test_shards_hold_the_rows_that_were_dealt(wanted: tuple[float, float, float]) -> None:
    data = blobs()
    dealt = deal(data, 5, iid, KEY, wanted)
    assert len(dealt) == 5 and dealt.clients == (0, 1, 2, 3, 4)
    for i in dealt.clients:
        for s in SPLITS:
            x, y = dealt[Handle(i, s)]
            rows = dealt.parts[i][s]
            assert bits(x) == bits(data.x[rows]) and bits(y) == bits(data.y[rows])
            assert x.is_contiguous() and y.is_contiguous()
        assert dealt.counts(i) == {s: len(dealt.parts[i][s]) for s in SPLITS}
        assert dealt.labels(i).tolist() == sorted(set(dealt[Handle(i, "train")][1].tolist()))
    used = [p[s] for p in dealt.parts.values() for s in (SPLITS if wanted[1] else ("train", "test"))]
    assert owned_once(used, len(data))
    assert dealt.doubles == (wanted[1] == 0)


def test_dealing_goes_by_the_key_alone() -> None:
    a, b, c = (deal(blobs(), 5, iid, key) for key in (KEY, Key(5), KEY.at("else")))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    owned = iid(blobs().y, 5, KEY.at("partition"))
    assert all(torch.equal(torch.cat(list(a.parts[i].values())).sort().values, rows) for i, rows in enumerate(owned))
    assert all(torch.equal(a.parts[2][s], split(owned[2], KEY.at("split", 2))[s]) for s in SPLITS)


def test_the_pooled_test_set_is_all_clients_one_after_another() -> None:
    data = blobs()
    for wanted in ((0.6, 0.1, 0.3), (0.7, 0.0, 0.3)):
        dealt = deal(data, 4, iid, KEY, wanted)
        x, y = dealt.pooled_test
        tests = [dealt[Handle(i, "test")] for i in range(4)]
        assert bits(x) == bits(torch.cat([t[0] for t in tests])) and bits(y) == bits(torch.cat([t[1] for t in tests]))


def test_clients_need_not_be_numbered_from_nought() -> None:
    data = blobs(10)
    parts = parts_of(*TWO)
    dealt = Shards(data, {42: parts[1], 7: parts[0]})
    assert dealt.clients == (7, 42) and bits(dealt[Handle(42, "test")][0]) == bits(data.x[[9, 8]])
    assert bits(dealt.pooled_test[1]) == bits(data.y[[2, 9, 8]])


def test_a_handle_of_nothing_is_a_key_error() -> None:
    dealt = Shards(blobs(10), parts_of(*TWO))
    for handle, say in (
        (Handle(9, "train"), "client 9 are called 'train'"),
        (Handle(0, "tests"), "client 0 .* 'tests'"),
    ):
        with pytest.raises(KeyError, match=say):
            dealt[handle]


def test_doubles_says_whether_the_test_part_is_validation_too() -> None:
    data = blobs(10)
    assert not Shards(data, parts_of(*TWO)).doubles
    assert Shards(data, parts_of(([0], [1], [1]), ([2], [3, 4], [3, 4]))).doubles


def changed(data: Dataset, row: int, x: float | None = None, y: float | None = None) -> Dataset:
    xs, ys = data.x.clone(), data.y.clone()
    if x is not None:
        xs[row, 1, 1] = x
    if y is not None:
        ys.view(len(ys), -1)[row, -1] = y  # one of its targets
    return replace(data, x=xs, y=ys)


REAL = Dataset("real", torch.rand(10, 2, 3), torch.rand(10, 2), Regression(), (2, 3), 0)
TEXT = Dataset(
    "text", torch.zeros(10, 4, dtype=torch.int64), torch.ones(10, 4, dtype=torch.int64), NextToken(7), (4,), 7
)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("data", "clients", "say"),
    [
        (blobs(10), (), "blobs: nobody has data"),
        (blobs(10), (TWO[0], ([], [], [])), "client 1 has no data"),
        (blobs(10), (([], [1], [2]), TWO[1]), "client 0 has no train samples; three parts need three samples at least"),
        (blobs(10), (TWO[0], ([3], [], [4])), "client 1 has no val samples"),
        (blobs(10), (TWO[0], ([3], [4], [])), "client 1 has no test samples"),
        (blobs(10), (TWO[0], ([3], [4], [10])), "client 1: row 10 is not one of the 10 of blobs"),
        (blobs(10), (TWO[0], ([3, -1], [4], [6])), "client 1: row -1 is not one of the 10 of blobs"),
        (blobs(10), (TWO[0], ([3], [4], [5])), "row 5 is in the train part of client 0 and in the test .* 1"),
        (blobs(10), (TWO[0], ([3], [4], [7, 3])), "row 3 is in the train part of client 1 and in the test .* 1"),
        (blobs(10), (TWO[0], ([3, 3], [4], [7])), "row 3 is in the train part of client 1 and in the train .* 1"),
        (blobs(10), (([0], [1, 2], [2]), TWO[1]), "row 2 is in the val part of client 0 and in the test .* 0"),
        (blobs(10), (([0], [2], [2]), TWO[1]), "row 2 is in the val part of client 0 and in the test .* 0"),
        (blobs(10), (([0], [1, 2], [2, 1]), ([3], [4], [4])), "row 2 is in the val part of client 0 and in the test"),
        (changed(blobs(10), 4, x=NAN), TWO, "client 1, train part: row 4 holds a number that is not finite"),
        (changed(blobs(10), 8, x=-INF), TWO, "client 1, test part: row 8 holds a number that is not finite"),
        (changed(blobs(10), 1, y=4), TWO, r"client 0, val part: row 1 has a label .* the 4 classes \(0 to 3\)"),
        (changed(blobs(10), 9, y=-1), TWO, "client 1, test part: row 9 has a label that is not one of the 4 classes"),
        (changed(REAL, 6, y=INF), TWO, "client 1, val part: row 6 has a target that is not finite"),
        (changed(TEXT, 2, y=7), TWO, r"client 0, test part: row 2 has a label .* the 7 classes \(0 to 6\)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_data_is_said_by_client_and_row(
    data: Dataset, clients: tuple[tuple[list[int], list[int], list[int]], ...], say: str
) -> None:
    with pytest.raises(ValueError, match=say):
        Shards(data, parts_of(*clients))


def test_rows_are_whole_numbers_and_every_part_is_there() -> None:
    parts = parts_of(*TWO)
    for rows in (torch.tensor([True] * 10), torch.tensor([3.0]), torch.tensor([3], dtype=torch.uint8)):
        with pytest.raises(ValueError, match="client 1: the rows of its val part are int64 numbers, not torch"):
            Shards(blobs(10), {0: parts[0], 1: {**parts[1], "val": rows}})
    with pytest.raises(ValueError, match="client 1 has no val samples"):
        Shards(blobs(10), {0: parts[0], 1: {s: parts[1][s] for s in ("train", "test")}})


def test_what_nobody_holds_may_be_wrong() -> None:
    rows = ([0, 5], [1], [2]), ([7, 3], [6], [9])
    for data in (changed(blobs(10), 4, x=NAN), changed(blobs(10), 8, y=99)):
        assert Shards(data, parts_of(*rows)).counts(1) == {"train": 2, "val": 1, "test": 1}


def test_data_of_every_task_are_accepted() -> None:
    assert Shards(REAL, parts_of(*TWO)).labels(0).tolist() == []
    assert Shards(TEXT, parts_of(*TWO)).labels(0).tolist() == [1]
    numbers = Dataset("numbers", torch.rand(10), torch.rand(10), Regression(), (), 0)
    assert Shards(numbers, parts_of(*TWO))[Handle(0, "train")][0].shape == (2,)
    with pytest.raises(ValueError, match="client 1, train part: row 7 holds"):
        Shards(replace(numbers, x=torch.where(torch.arange(10) == 7, NAN, numbers.x)), parts_of(*TWO))


# ---- the fingerprint
def test_the_fingerprint_knows_every_number_and_every_owner() -> None:
    data, parts = blobs(10), parts_of(*TWO)
    here = Shards(data, parts).fingerprint
    assert (
        here == Shards(blobs(10), parts_of(*TWO)).fingerprint == Shards(data, dict(reversed(parts.items()))).fingerprint
    )
    others = [
        Shards(changed(data, 0, x=0.25), parts),
        Shards(changed(data, 5, y=(int(data.y[5]) + 1) % 4), parts),
        Shards(replace(data, x=data.x.double()), parts),
        Shards(replace(data, x=data.x.view(10, 3, 2), shape=(3, 2)), parts),
        Shards(data, parts_of(TWO[1], TWO[0])),
        Shards(data, {0: parts[0], 2: parts[1]}),
        Shards(data, parts_of(TWO[0], ([3, 4, 7], [6], [9, 8]))),
        Shards(data, parts_of(TWO[0], ([7, 3, 4], [9, 8], [6]))),
        Shards(data, parts_of(TWO[0], ([7, 3], [6], [9, 8]))),
    ]
    assert len({here, *(s.fingerprint for s in others)}) == 1 + len(others)


def test_the_fingerprint_does_not_go_by_the_layout_in_memory() -> None:
    data = blobs(10)
    turned = replace(data, x=data.x.transpose(0, 2).contiguous().transpose(0, 2))
    assert not turned.x.is_contiguous()
    assert Shards(turned, parts_of(*TWO)).fingerprint == Shards(data, parts_of(*TWO)).fingerprint


# ---- every process
def told() -> list[object]:
    """What a process makes of the same keys."""
    data, out = blobs(), []
    for text in ("iid", "dirichlet:0.3:3", "dirichlet:50:1"):
        dealt = deal(data, 5, parse(text), KEY)
        out.append([dealt.fingerprint, [[rows.tolist() for rows in p.values()] for p in dealt.parts.values()]])
    return out


_CHILD = """
import json, torch
torch.manual_seed(3)
from tests.laws.test_data import told
print(json.dumps(told()))
"""


def test_another_process_shares_out_the_same() -> None:
    there = subprocess.run(
        [sys.executable, "-W", "error", "-c", _CHILD],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "4321"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == told()


GOLDEN_IID = [[0, 5, 8, 11], [1, 2, 4, 9], [3, 6, 7, 10]]
GOLDEN_DIRICHLET = [[4, 15], [1, 2, 11, 13, 14, 16, 17, 20, 22, 23], [0, 3, 5, 6, 7, 8, 9, 10, 12, 18, 19, 21]]
GOLDEN_SPLIT = {"train": [0, 1, 4, 5, 6, 7], "val": [9], "test": [2, 3, 8]}


def test_golden_parts() -> None:
    assert [p.tolist() for p in iid(torch.arange(12) % 3, 3, Key(0))] == GOLDEN_IID
    assert [p.tolist() for p in dirichlet(torch.arange(24) % 3, 3, Key(0), 0.5, 2)] == GOLDEN_DIRICHLET
    assert {s: rows.tolist() for s, rows in split(torch.arange(10), Key(0)).items()} == GOLDEN_SPLIT


# ---- sources
def test_the_digits_are_there() -> None:
    data = load("digits")
    assert len(data) == 1797 and data.shape == (1, 8, 8) and data.classes == 10 and data.task == Classification(10)
    assert data.x.dtype == torch.float32 and float(data.x.min()) == 0 and float(data.x.max()) == 1
    assert sorted(set(data.y.tolist())) == list(range(10)) and bits(digits().x) == bits(data.x)
    dealt = deal(data, 10, parse("dirichlet:0.1"), KEY)
    assert sum(len(rows) for p in dealt.parts.values() for rows in p.values()) == 1797


def test_a_data_set_that_is_none_is_explained() -> None:
    with pytest.raises(ValueError, match="no data set is called 'digit'; did you mean 'digits'"):
        load("digit")
    with pytest.raises(ValueError, match=f"There are: {', '.join(SOURCES)}"):
        load("zzz")


def test_a_data_set_fits_what_it_says_of_itself() -> None:
    with pytest.raises(ValueError, match="odd: 4 samples with 3 targets"):
        Dataset("odd", torch.zeros(4, 2), torch.zeros(3), Regression(), (2,), 0)
    with pytest.raises(ValueError, match=r"odd: samples of shape \(2,\), declared as \(3,\)"):
        Dataset("odd", torch.zeros(4, 2), torch.zeros(4), Regression(), (3,), 0)
