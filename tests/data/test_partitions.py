"""The laws of every partition: who owns what, the least, exact shares, and the same in every process."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt.data import Dataset, Shards, deal
from fedquilt.data.drift import DRIFTS
from fedquilt.data.drift import parse as parse_drift
from fedquilt.data.partition import PARTITIONS, parse
from fedquilt.data.shard import SPLITS
from fedquilt.key import Key
from fedquilt.prepare import prepare
from fedquilt.run import Run
from fedquilt.task import Classification
from fedquilt.types import Handle

KEY = Key(3)
CLASSES, OWNERS = 6, 30
SHARES = {"60/10/30": (0.6, 0.1, 0.3), "70/0/30": (0.7, 0.0, 0.3)}
TEXTS = {
    "iid": "iid",
    "dirichlet": "dirichlet:0.3:5",
    "pathological": "pathological:2",
    "shards": "shards:2:20",
    "quantity": "quantity:0.5:5",
    "tiers": "tiers:4,1",
    "natural": "natural:5",
    "groups": "groups:0.5:10",
    "overlapping": "overlapping:2.5",
}
WHOLE = ("iid", "dirichlet", "quantity", "tiers", "groups")  # every sample is somebody's
SIDED = ("shards", "overlapping")  # clients may share what they are tested on


def data(n: int = 900, own_test: int = 0, kind: str = "plain") -> Dataset:
    """Samples of six classes and thirty owners of unequal sizes."""
    y = torch.randint(CLASSES, (n,), generator=KEY.at("y", n).torch())
    groups = torch.randint(OWNERS, (n,), generator=KEY.at("groups", n).torch()) // 2 * 2 // 3
    x = torch.randn(n, 3, 8, generator=KEY.at("x", n).torch())
    names = tuple(str(i) for i in range(OWNERS))
    made = Dataset("some", x, y, Classification(CLASSES), (3, 8), CLASSES, groups=groups, owners=names)
    if kind == "series":  # 60 series of 15 windows, by owner
        series = torch.arange(n) // 15
        return replace(made, series=series, gap=1, groups=series % OWNERS // 3, y=series % CLASSES)
    return replace(made, own_test=own_test)


def shared(name: str, key: Key = KEY, shares: str = "60/10/30", clients: int = 6, **more: Any) -> Shards:
    return deal(data(**more), clients, parse(TEXTS[name]), key, SHARES[shares])


def test_every_partition_is_tried() -> None:
    assert set(TEXTS) == set(PARTITIONS)


# ---- laws
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("seed", range(5))
def test_no_sample_is_trained_on_and_tested_on_and_each_has_one_owner(name: str, shares: str, seed: int) -> None:
    dealt = shared(name, KEY.at(seed), shares)
    rows = dealt.parts.rows
    held = ("train", "test") if dealt.doubles else SPLITS
    assert dealt.doubles == (shares == "70/0/30")
    for i, a in enumerate(held):
        for b in held[i + 1 :]:
            assert not bool(torch.isin(rows[a], rows[b]).any()), "whoever's they are"
    if name not in SIDED:
        every = torch.cat([rows[s] for s in held])
        assert len(every.unique()) == len(every)
        assert (len(every) == 900) == (name in WHOLE) or name in ("pathological", "natural")
    for client in dealt.clients:
        for s in held:
            mine = dealt.parts.part(client, s)
            assert len(mine) and torch.equal(mine, mine.sort().values) and len(mine.unique()) == len(mine)


@pytest.mark.parametrize("name", PARTITIONS)
def test_equal_keys_are_equal_parts_and_other_keys_are_not(name: str) -> None:
    a, b, c = (shared(name, key).fingerprint for key in (KEY, Key(3), Key(4)))
    assert a == b != c


@pytest.mark.parametrize(("name", "least"), [("dirichlet", 5), ("quantity", 5), ("natural", 5), ("groups", 10)])
def test_the_least_is_kept(name: str, least: int) -> None:
    for seed in range(20):
        dealt = shared(name, KEY.at(seed))
        assert all(sum(dealt.counts(i).values()) >= least for i in dealt.clients)


def subject(name: str, n: int = 6, key: Key = KEY) -> tuple[Dataset, list[Any]]:
    some = data()
    return some, parse(TEXTS[name])(some.groups if name in ("natural", "groups") else some.y, n, key)  # type: ignore[arg-type]


def test_pathological_clients_have_their_classes_and_equal_shares_of_them() -> None:
    for n in (3, 6, 7):
        some, parts = subject("pathological", n)
        table = torch.stack([some.y[p].bincount(minlength=CLASSES) for p in parts])
        assert bool(((table > 0).sum(1) == 2).all())
        held = (table > 0).sum(0)
        assert int(held.max() - held.min()) <= 1
        for c in range(CLASSES):
            sizes = table[:, c][table[:, c] > 0]
            assert not len(sizes) or int(sizes.max() - sizes.min()) <= 1
            assert not len(sizes) or int(sizes.sum()) == int((some.y == c).sum())


def test_sizes_of_quantity_are_the_draw_and_those_of_tiers_the_steps() -> None:
    drawn = KEY.at("shares").numpy().dirichlet(np.full(6, 0.5)) * 900
    sizes = np.array([len(p) for p in parse("quantity:0.5:1")(data().y, 6, KEY)])
    assert np.abs(sizes - drawn).max() <= 1 + (drawn < 1).sum()
    steps = sorted(len(p) for p in subject("tiers")[1])
    assert steps == [60, 60, 60, 240, 240, 240]
    published = sorted(len(p) for p in parse("tiers")(torch.zeros(2000, dtype=torch.int64), 10, KEY))
    assert published == [50] * 8 + [800] * 2


def test_natural_owners_stay_whole_and_one_client_is_one_of_them() -> None:
    some, parts = subject("natural")
    assert some.groups is not None
    for p in parts:
        (owner,) = some.groups[p].unique().tolist()
        assert len(p) == int((some.groups == owner).sum()) >= 5
    some, parts = subject("groups")
    owners = [some.groups[p].unique() for p in parts]  # type: ignore[index]
    together = torch.cat(owners)
    assert len(together) == len(together.unique()) == len(some.groups.unique()), "each owner is with one client"  # type: ignore[union-attr]


def test_group_sizes_follow_their_draw() -> None:
    groups = torch.arange(3000) // 10  # so fine that shares can be met
    parts = parse("groups:1:10")(groups, 5, KEY)
    wanted = KEY.at("shares").numpy().dirichlet(np.full(5, 1.0)) * 3000
    assert np.abs(np.array([len(p) for p in parts]) - wanted).max() <= 10 * 5


def test_shards_are_fedlpss() -> None:
    """Two shards of one label each, and so many test samples of each label that is held."""
    y = torch.arange(1200) % 6
    some = Dataset("some", torch.rand(1200, 2), y, Classification(6), (2,), 6, own_test=300)
    dealt = deal(some, 10, parse("shards:2:40"), KEY, (0.7, 0.0, 0.3))
    for i in dealt.clients:
        train, test = (dealt.parts.part(i, s) for s in ("train", "test"))
        assert len(train) == 80 and bool((train < 900).all()) and bool((test >= 900).all())
        held = y[train].unique()
        assert len(held) <= 3  # a shard may straddle two labels
        assert y[test].bincount(minlength=6).tolist() == [40 if c in held else 0 for c in range(6)]
    every = dealt.parts.rows["train"]
    assert len(every.unique()) == 800, "training shards are nobody else's"
    tests = dealt.parts.rows["test"]
    assert len(tests.unique()) < len(tests), "test samples may be others' too"


def test_overlapping_clients_draw_as_if_alone() -> None:
    dealt = shared("overlapping")
    for s, share in (("train", 0.6), ("val", 0.1), ("test", 0.3)):
        assert set(dealt.parts.sizes(s).tolist()) == {int(900 * share * 2.5 / 6 + 1e-9)}
        rows = dealt.parts.rows[s]
        assert 1 < len(rows) / len(rows.unique()) < 3


@pytest.mark.parametrize("name", ["iid", "dirichlet", "natural", "groups", "pathological"])
@pytest.mark.parametrize("shares", SHARES)
def test_series_stay_whole_and_are_split_in_time_with_a_gap(name: str, shares: str) -> None:
    text = {"dirichlet": "dirichlet:0.5:2", "groups": "groups:1:15"}.get(name, TEXTS[name])
    some = data(kind="series")
    dealt = deal(some, 5, parse(text), KEY, SHARES[shares])
    held = ("train", "test") if dealt.doubles else SPLITS
    for client in dealt.clients:
        mine = {s: dealt.parts.part(client, s) for s in held}
        for one in torch.cat([some.series[p] for p in mine.values()]).unique():  # type: ignore[index]
            times = [p[some.series[p] == one] for p in mine.values()]  # type: ignore[index]
            assert all(int(a.max()) + 1 < int(b.min()) for a, b in itertools.pairwise(times))
            others = [dealt.parts.part(i, s) for i in dealt.clients if i != client for s in held]
            assert not bool((some.series[torch.cat(others)] == one).any())  # type: ignore[index]


@pytest.mark.parametrize("name", SIDED)
def test_series_with_a_gap_are_not_drawn_singly(name: str) -> None:
    with pytest.raises(ValueError, match="its samples cannot be drawn singly"):
        deal(data(kind="series"), 5, parse(TEXTS[name]), KEY)


def test_the_own_test_part_is_the_test_side_of_those_that_draw_from_sides() -> None:
    dealt = shared("overlapping", own_test=200)
    assert bool((dealt.parts.rows["test"] >= 700).all()) and bool((dealt.parts.rows["train"] < 700).all())
    assert bool((torch.cat(list(shared("iid", own_test=200).parts.rows.values())) < 700).all())


@pytest.mark.parametrize(
    ("text", "clients", "say"),
    [
        ("natural:1", 50, r"\d+ of \d+ natural owners have 1 samples or more, too few for 50 clients: take at most"),
        (
            "natural:5000",
            3,
            "0 of .* take a smaller least than 5000, or the partition 'groups', or the partition 'iid'",
        ),
        ("groups", 50, r"natural owners cannot be 50 groups: take from 1 to \d+ clients"),
        ("groups:0.5:500", 6, "900 samples cannot give 6 clients 500 each"),
        ("shards:2:100", 6, "540 samples to train on make 5 shards of 100, .*: take at most 2 clients, or smaller"),
        ("shards:2:1000", 6, "make 0 shards of 1000, too few to give 6 clients 2 each: take smaller shards"),
        ("pathological:7", 6, "classes, how many each client has, is from 1 to 6, not 7"),
        ("pathological:1", 900, r"class \d: \d+ samples cannot give 150 clients 1 each"),
        ("quantity:-1", 6, "alpha of a quantity partition is a number above 0, not -1"),
        ("tiers:1,-1", 6, "sizes of tiers are numbers above 0"),
        ("overlapping:7", 6, "is above 0 and at most 6, not 7"),
        ("iid", 901, "900 samples cannot give 901 clients 1 each: take at most 900 clients"),
        ("iid", 400, "client 100 has no val samples; three parts need three samples at least"),
    ],
)
def test_what_cannot_be_shared_out_is_explained(text: str, clients: int, say: str) -> None:
    with pytest.raises(ValueError, match=say):
        deal(data(), clients, parse(text), KEY)


# ---- the same everywhere
def told(name: str) -> list[Any]:
    """All rows of all clients, before and after every drift."""
    torch.manual_seed(KEY.number() % 1000)  # whatever others did with it
    some, drifts = data(), parse_drift("repartition:every=2+labels:0.5:at=3+new-class:at=5:share=0.5")
    dealt = deal(some, 6, parse(TEXTS[name]), KEY, drift=drifts, unseen=0.2)
    rounds = [[dealt.at(r).rows[s].tolist() for s in SPLITS] for r in (0, 2, 3, 6)]
    return [dealt.fingerprint, sorted(dealt.unseen), rounds]


def test_any_number_of_processes_shares_out_the_same() -> None:
    here = {name: told(name) for name in TEXTS}
    for start, processes in (("fork", 1), ("fork", 3), ("spawn", 2)):
        with multiprocessing.get_context(start).Pool(processes) as pool:
            assert dict(zip(TEXTS, pool.map(told, TEXTS), strict=True)) == json.loads(json.dumps(here)), (
                start,
                processes,
            )


@pytest.mark.parametrize("name", DRIFTS)
def test_workers_see_the_data_that_the_server_sees(name: str) -> None:
    """What is in a client's hands in a round is the same on any engine, drift or not."""
    text = f"{name}:at=1" if name != "repartition" else "repartition:every=1"
    ask = Run(data=data(), drift=text, partition="iid", clients=4, method={"name": "fedavg", "epochs": 1})
    one, other = (prepare(replace(ask, engine=e)).data for e in ("serial", "processes:2"))
    for client in one.clients:
        for s in SPLITS:
            for round in (0, 1, 2):
                at = Handle(client, s, one.since(round))
                assert all(torch.equal(a, b) for a, b in zip(one[at], other[at], strict=True))


# ---- one's own
MINE = """
import torch

def first_come(labels, n, key, block: int = 10):
    rows = torch.arange(len(labels)).split(block)
    return [torch.cat(rows[client::n]) for client in range(n)]

def by_owner(groups, n, key):
    return [(groups % n == client).nonzero().flatten().tolist() for client in range(n)]

def one_short(labels, n, key):
    return first_come(labels, n - 1, key)

def twice(labels, n, key):
    return [torch.arange(len(labels))] * n

some = 3
"""


def test_a_partition_of_ones_own_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_partitions.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    some, every = data(), {i: torch.arange(900).split(5)[i::6] for i in range(6)}
    dealt = deal(some, 6, parse("own_partitions:first_come:5"), KEY)
    for i in dealt.clients:
        assert torch.equal(torch.cat([dealt.parts.part(i, s) for s in SPLITS]).sort().values, torch.cat(every[i]))
    assert len(parse("own_partitions:first_come:block=3")(some.y, 6, KEY)[0]) == 150
    by_owner = deal(some, 3, parse("own_partitions:by_owner"), KEY)
    assert bool((some.groups[by_owner.parts.part(1, "train")] % 3 == 1).all())  # type: ignore[index]
    moved = deal(some, 6, parse("own_partitions:first_come"), KEY, drift=parse_drift("repartition:every=1"))
    assert not torch.equal(moved.at(0).part(1, "train"), moved.at(1).part(1, "train"))


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("own_partitions:first_com", "did you mean 'first_come'"),
        ("own_partitions:first_come:blok=3", "has no setting 'blok'; did you mean 'block'"),
        ("own_partitions:some", "is not a class or a function that shares out data"),
        ("own_partitions:one_short", "shares the data out among 5 clients, not 6"),
        ("own_partitions:twice", r"row \d+ is in the \w+ part of client 0 and in the \w+ part of client 1"),
        ("no_such_module:first_come", "no module is called 'no_such_module'"),
        ("dirichle:0.3", "no partition is called 'dirichle'; did you mean 'dirichlet'"),
    ],
)
def test_what_is_wrong_with_ones_own_is_said(
    text: str, say: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_partitions.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=say):
        deal(data(), 6, parse(text), KEY)
