"""What each drift does to whom and when; all of it a pure function of round and key."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedquilt.data import Dataset, Shards, deal, iid
from fedquilt.data.drift import DRIFTS, parse
from fedquilt.data.partition import parse as parse_partition
from fedquilt.data.ready import Prepare
from fedquilt.data.shard import SPLITS
from fedquilt.drive.sim import Round
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.task import Classification, Regression
from fedquilt.types import EVERYONE, Handle

from ..world import FAMILIES, of, play, small

KEY = Key(2)
CLASSES = 4


def data(n: int = 400, prepare: Prepare | None = None) -> Dataset:
    y = torch.arange(n) % CLASSES
    x = torch.randn(n, 3, 20, generator=KEY.at("x").torch())
    return Dataset("some", x, y, Classification(CLASSES), (3, 20), CLASSES, prepare or Prepare((2.0,), (1.0,)))


def drifting(text: str, clients: int = 8, partition: str = "iid", some: Dataset | None = None, **more: float) -> Shards:
    return deal(some or data(), clients, parse_partition(partition), KEY, drift=parse(text), **more)  # type: ignore[arg-type]


def see(shards: Shards, client: int, split: str, round: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the net sees of a client's samples in a round, and its targets."""
    x, y = shards[Handle(client, split, shards.since(round))]
    return shards.prepare(x), y


def rows(shards: Shards, round: int) -> dict[int, dict[str, list[int]]]:
    at = shards.at(round)
    return {i: {s: at.part(i, s).tolist() for s in SPLITS} for i in shards.clients}


# ---- when and whom
@pytest.mark.parametrize(
    ("text", "struck"),
    [
        ("labels", {0: 1, 5: 1, 99: 1}),
        ("labels:at=5", {0: 0, 4: 0, 5: 1, 99: 1}),
        ("labels:every=10", {0: 0, 9: 0, 10: 1, 19: 1, 20: 2}),
        ("labels:at=5:every=10", {4: 0, 5: 1, 14: 1, 15: 2, 25: 3}),
        ("repartition", {0: 0, 39: 0, 40: 1, 80: 2}),  # mpfl's V4
    ],
)
def test_a_drift_strikes_at_a_round_and_again(text: str, struck: dict[int, int]) -> None:
    (drift,) = parse(text)
    assert {round: drift.times(round) for round in struck} == struck
    assert all(drift.since(round) <= round and drift.times(drift.since(round)) == n for round, n in struck.items())


def test_a_share_of_the_clients_is_struck_and_always_the_same() -> None:
    shards = drifting("noise:0.5:at=3:every=2:share=0.25")
    before = {i: see(shards, i, "train", 2)[0] for i in shards.clients}
    struck = [[i for i in shards.clients if not torch.equal(before[i], see(shards, i, "train", r)[0])] for r in (3, 5)]
    assert len(struck[0]) == 2 and struck[0] == struck[1]


@pytest.mark.parametrize("name", DRIFTS)
def test_nothing_is_drawn_but_from_the_key_and_every_part_stays(name: str) -> None:
    text = f"{name}:at=2:every=2" if name not in ("new-class", "left-out") else f"{name}:at=2"
    one, other = drifting(text), drifting(text)
    for round in (6, 0, 3, 2, 5):  # in any order
        for i in one.clients:
            for s in SPLITS:
                a, b = see(one, i, s, round), see(other, i, s, round)
                assert len(a[0]) and torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
                assert bool(a[0].isfinite().all())
        assert torch.equal(see(one, EVERYONE, "test", round)[0], see(other, EVERYONE, "test", round)[0])


# ---- who has which rows
EXCHANGED = ("iid", "dirichlet:0.5:4", "pathological:2", "shards:2:10", "overlapping:2", "quantity:1:5", "tiers:2,1")


@pytest.mark.parametrize("partition", EXCHANGED)
def test_a_repartition_keeps_sides_and_moves_samples(partition: str) -> None:
    shards = drifting("repartition:every=4", partition=partition)
    told = [rows(shards, r) for r in (0, 3, 4, 8)]
    assert told[0] == told[1] != told[2] != told[3] != told[0]
    for s in SPLITS:
        sides = [sorted({row for parts in t.values() for row in parts[s]}) for t in told]
        assert set(sides[2]) <= set(sides[0]) and set(sides[3]) <= set(sides[0])
        assert partition not in ("iid", "dirichlet:0.5:4") or sides[0] == sides[2] == sides[3]
    for t in told:
        trained = {row for parts in t.values() for row in (*parts["train"], *parts["val"])}
        assert trained.isdisjoint(row for parts in t.values() for row in parts["test"])


def test_natural_owners_change_clients_whole_and_unseen_clients_exchange_nothing() -> None:
    some = replace(data(), groups=torch.arange(400) // 50, owners=tuple("abcdefgh"))
    shards = drifting("repartition:every=4", partition="natural:5", some=some)
    before, after = rows(shards, 0), rows(shards, 4)
    assert sorted(map(str, before.values())) == sorted(map(str, after.values())) and before != after
    shards = drifting("repartition:every=4", unseen=0.25)
    assert len(shards.unseen) == 2
    before, after = rows(shards, 0), rows(shards, 4)
    assert all(before[i] == after[i] for i in shards.unseen)
    assert all(before[i] != after[i] for i in shards.clients if i not in shards.unseen)


def test_a_label_shift_thins_classes_on_each_side_alike() -> None:
    shards = drifting("labels:0.3:at=1", clients=4)
    before, after = rows(shards, 0), rows(shards, 1)
    y = shards.data.y
    for i in shards.clients:
        kept = torch.zeros(2, CLASSES)
        for n, s in enumerate(("train", "test")):
            assert set(after[i][s]) < set(before[i][s])
            old, new = (y[t[i][s]].bincount(minlength=CLASSES) for t in (before, after))
            kept[n] = new / old
        assert float(kept.max()) == 1.0 and float((kept[0] - kept[1]).abs().max()) <= 0.1


def test_a_new_class_comes_and_a_class_that_is_left_out_stays_in_the_tests() -> None:
    y = data().y
    shards = drifting("new-class:label=2:at=5:share=0.5")
    without = [i for i in shards.clients if not bool((y[shards.at(4).part(i, "train")] == 2).any())]
    assert len(without) == 4
    for i in without:
        assert not bool((y[shards.at(4).part(i, "test")] == 2).any())
        assert 2 in shards.labels(i, 5) and 2 not in shards.labels(i, 4)
    shards = drifting("left-out:label=1")
    held = {s: y[torch.cat([shards.at(0).part(i, s) for i in shards.clients])].unique().tolist() for s in SPLITS}
    assert held["train"] == [0, 2, 3] == held["val"] and held["test"] == [0, 1, 2, 3]
    assert {len(drifting("left-out").labels(i)) for i in shards.clients} == {3}, "one class, the same for all"


# ---- what the samples are
def test_noise_is_in_units_of_the_net_and_grows() -> None:
    shards = drifting("noise:0.5:every=2", some=data(4000))
    clean = see(shards, 0, "train", 0)[0]
    for round, sigma in ((2, 0.5), (4, 1.0), (6, 1.5)):
        gap = see(shards, 0, "train", round)[0] - clean
        assert float(gap.std()) == pytest.approx(sigma, rel=0.03) and abs(float(gap.mean())) < 0.03


def test_a_sensor_has_a_gain_and_a_bias_by_channel() -> None:
    shards = drifting("sensor:0.3:0.2:every=3")
    found = []
    for round in (3, 6):
        for i in shards.clients:
            clean, seen = see(shards, i, "train", 0)[0], see(shards, i, "train", round)[0]
            for c in range(3):
                a, b = clean[:, c].flatten(), seen[:, c].flatten()
                slope = float(((a - a.mean()) * (b - b.mean())).sum() / ((a - a.mean()) ** 2).sum())
                shift = float(b.mean() - slope * a.mean())
                assert torch.allclose(b, slope * a + shift, atol=1e-4), "nothing but a gain and a bias"
                found.append((slope, shift))
            test = see(shards, i, "test", round)[0], see(shards, i, "test", 0)[0]
            assert torch.allclose(test[0][:, 2], found[-1][0] * test[1][:, 2] + found[-1][1], atol=1e-4), (
                "of the device"
            )
    assert len(set(found)) == len(found)
    slopes, shifts = torch.tensor(found).T
    assert 0.15 < float(slopes.std()) < 0.45 and 0.1 < float(shifts.std()) < 0.3


def test_a_rate_stretches_time() -> None:
    ramp = torch.arange(20.0).expand(400, 3, 20).contiguous()
    shards = drifting("rate:0.5:2", some=replace(data(), x=ramp, prepare=Prepare()))
    rates = []
    for i in shards.clients:
        x = shards[Handle(i, "train", 0)][0]
        rates.append(float(x[0, 0, 1]))
        assert torch.allclose(x[0, 0], (torch.arange(20.0) * rates[-1]).clamp(max=19), atol=1e-4)
    assert len(set(rates)) == 8 and 0.5 <= min(rates) < max(rates) <= 2
    assert torch.equal(drifting("rate:1:1").pooled_test[0], drifting("labels:at=9").pooled_test[0])


def test_label_noise_is_in_training_labels_alone() -> None:
    shards = drifting("label-noise:0.25:every=2", some=data(4000))
    for round in (2, 4):
        for s in SPLITS:
            clean, noisy = see(shards, 0, s, 0)[1], see(shards, 0, s, round)[1]
            wrong = float((clean != noisy).float().mean())
            assert int(noisy.min()) >= 0 and int(noisy.max()) < CLASSES
            assert wrong == pytest.approx(0.25, abs=0.06) if s == "train" else wrong == 0
    assert not torch.equal(see(shards, 0, "train", 2)[1], see(shards, 0, "train", 4)[1])


def test_drifts_join_and_a_doubled_validation_part_stays_one() -> None:
    shards = deal(data(), 8, iid, KEY, (0.7, 0.0, 0.3), parse("noise:0.5:at=1+label-noise:0.5:at=2"))
    assert torch.equal(see(shards, 0, "val", 1)[0], see(shards, 0, "test", 1)[0])
    assert not torch.equal(see(shards, 0, "train", 1)[0], see(shards, 0, "train", 0)[0])
    assert not torch.equal(see(shards, 0, "train", 2)[1], see(shards, 0, "train", 1)[1])


# ---- what cannot be
@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("nois", "no drift is called 'nois'; did you mean 'noise'"),
        ("noise:sigme=1", "has no setting 'sigme'; did you mean 'sigma'"),
        ("noise:share=0", "share, of the clients, is above 0 and at most 1, not 0"),
        ("noise:at=-1", "at and every are rounds, from 0"),
        ("labels:0", "alpha is a number above 0, not 0"),
        ("rate:2:1", "rates are above 0, low at most high: not 2 and 1"),
        ("label-noise:2", "p is a share of the labels, from 0 to 1, not 2"),
    ],
)
def test_a_drift_that_is_none_is_explained(text: str, say: str) -> None:
    with pytest.raises(ValueError, match=say):
        parse(text)


@pytest.mark.parametrize(
    ("text", "some", "say"),
    [
        ("labels", replace(data(), y=torch.rand(400), task=Regression()), "a shift of labels goes by class"),
        ("label-noise", replace(data(), y=torch.zeros(400, dtype=torch.int64), classes=1), "has one class"),
        ("rate", replace(data(), x=data().x[:, 0], shape=(20,)), "a sampling rate is of series"),
        ("noise", replace(data(), prepare=Prepare(tokens=True)), "noise changes numbers: some has tokens"),
        ("sensor", replace(data(), prepare=Prepare(tokens=True)), "a sensor's gain changes numbers"),
        ("new-class:label=9", data(), "9 is not one of the 4 classes"),
        ("left-out:label=4", data(), "4 is not one of the 4 classes"),
    ],
)
def test_data_that_a_drift_cannot_change_are_refused(text: str, some: Dataset, say: str) -> None:
    with pytest.raises(ValueError, match=say):
        drifting(text, some=some)


# ---- in a run
def test_a_run_trains_on_what_has_drifted() -> None:
    before, after = (played(text, 2) for text in ("", "noise:1:at=1"))
    assert before[0].record["loss"] == after[0].record["loss"], "as long as nothing has struck"
    assert before[1].record["loss"] != after[1].record["loss"]


def played(text: str, rounds: int) -> list[Round]:
    """Rounds of a tiny run under a drift."""
    kind, key = FAMILIES["mlp"], Key(0)
    shards = deal(kind.data(100, key.at("data")), 5, iid, key, drift=parse(text))
    return play(of(small(METHODS["fedavg"]), kind, shards, key, (1.0,)), rounds)[1]
