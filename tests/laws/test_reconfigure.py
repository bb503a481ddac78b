"""PruneFL's parts: squared gradients, those of pruned coordinates too, and the mask that they choose."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedquilt.cover import Cover, put, take
from fedquilt.fit import SGD, Fit
from fedquilt.fitting import fitted
from fedquilt.fleet import Device, Fleet
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.parts.local import Train
from fedquilt.parts.reconfigure import Pruned, Reconfigure, greedy, prunable, times_of
from fedquilt.types import Reply

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, samples, task, tiny, weights
from ..world import FAMILIES, small, world

# ---- its invariants
SLOW = SGD()


def pruned(optim: SGD = SLOW, epochs: int = 1, sums: bool = False) -> Pruned:
    return Pruned(Train(optim, epochs, 4), sums)


def mask(m: Model) -> Cover:
    """A third of the prunable weights, none at all of one tensor, and everything else."""
    names = prunable(m)
    rows = {
        k: torch.rand(s, generator=KEY.at("mask", k).torch()) < (0.3 if k in names else 2) for k, s in m.shapes.items()
    }
    return Cover.masks(rows | {names[0]: torch.zeros(m.shapes[names[0]]).bool()})


def rounds(name: str, local: Pruned, n: int) -> tuple[list[Reply], list[Any]]:
    """So many rounds of one client, the server sending back what it got."""
    m, run = tiny(name), engine(name)
    cover = mask(m)
    o, c = order(take(weights(m), cover), cover), client(m, task(name))
    replies, memories = [], []
    for r in range(n):
        o, c = replace(o, round=r, scalars={**o.scalars, **({"report": True} if r else {})}), replace(c, key=KEY.at(r))
        reply, memory = drive(run, local(o, c))
        replies, memories = [*replies, reply], [*memories, memory]
        o, c = replace(o, params=reply.params), replace(c, memory=memory)
    return replies, memories


@pytest.mark.parametrize("sums", [True, False], ids=["square of sums", "sum of squares"])
@pytest.mark.parametrize("name", ["mlp", "cnn-none"])
def test_the_importance_is_that_of_a_dense_backward_pass(name: str, sums: bool) -> None:
    m = tiny(name)
    cover, names = mask(m), prunable(m)
    local = pruned(HEAVY, epochs=2, sums=sums)
    replies, memories = rounds(name, local, 2)
    assert not replies[0].extra and not memories[1].tensors
    x, y = samples(name, 10, KEY.at("train"))
    net = copy.deepcopy(m.net).train()
    net.load_state_dict(put({k: torch.zeros_like(v) for k, v in m.params().items()}, cover, take(weights(m), cover)))
    named = dict(sorted(net.named_parameters()))
    kept = {k: cover[k].dense() if k in cover else torch.zeros(v.shape).bool() for k, v in named.items()}
    total = {k: torch.zeros(m.shapes[k]) for k in names}
    for r in range(2):
        optimiser = torch.optim.SGD(named.values(), 0.1, 0.9, weight_decay=0.01)  # a new one every round
        summed = {k: torch.zeros(m.shapes[k]) for k in names}
        for epoch in range(2):
            for rows in KEY.at(r, "train", "epoch", epoch).permutation(10).split(4):
                optimiser.zero_grad()
                F.cross_entropy(net(x[rows]), y[rows]).backward()
                for k in names:
                    summed[k] += named[k].grad if sums else named[k].grad ** 2
                for k, v in named.items():
                    v.grad *= kept[k]
                torch.nn.utils.clip_grad_norm_(named.values(), 0.5)
                optimiser.step()
        for k in names:
            total[k] += 10 * (summed[k] ** 2 if sums else summed[k])
    for k in names:
        got = replies[1].extra["importance/" + k]
        assert torch.allclose(got, total[k], rtol=1e-3, atol=1e-4)
        assert got[~kept[k]].ne(0).any()  # of pruned coordinates too, and of a tensor that is wholly pruned
    after = dict(net.state_dict())
    assert all(torch.allclose(v, cover[k].take(after[k]), atol=1e-5) for k, v in replies[1].params.items())


def test_what_is_pruned_is_zero_and_is_not_spoken_of() -> None:
    m, run = tiny("cnn"), engine("cnn")
    cover = mask(m)
    reply, _ = drive(run, pruned(HEAVY)(order(take(weights(m), cover), cover), client(m, task("cnn"))))
    f = run.asked[0]
    assert isinstance(f, Fit) and reply.cover == cover
    out = run.answer(f).params
    for k in m.trainable:
        off = ~cover[k].dense() if k in cover else torch.ones(m.shapes[k]).bool()
        assert not f.start[k][off].any() and not out[k][off].any()


def test_what_it_tells_is_what_it_was_granted() -> None:
    m = tiny("mlp")
    replies, _ = rounds("mlp", pruned(), 2)
    grant = pruned().grant(mask(m), m)
    assert {k: (v.dtype, tuple(v.shape)) for k, v in replies[1].extra.items()} == grant.extras


# ---- the mask
@pytest.mark.parametrize("seed", range(6))
def test_greedy_is_the_best_of_all_choices(seed: int) -> None:
    """Against every set that holds what is kept, of at most as many as allowed."""
    g = torch.rand(9, generator=KEY.at(seed).torch()).double()
    kept = torch.rand(9, generator=KEY.at("kept", seed).torch()) < 0.3
    one = torch.ones(9).double()
    some = 0.1 + torch.rand(9, generator=KEY.at("times", seed).torch()).double()
    few = int(kept.sum()) + 2
    for constant, most, t in ((0.5, 9, one), (5.0, 9, some), (5.0, few, one), (50.0, 9, one), (0.5, 9, some)):
        mine = greedy(kept, g, t, constant, most)
        value = g[mine].sum() / (constant + t[mine].sum())
        others = (~kept).nonzero().flatten().tolist()
        for n in range(most - int(kept.sum()) + 1):
            for extra in combinations(others, n):
                other = kept.index_fill(0, torch.tensor(extra, dtype=torch.int64), True)
                assert value >= g[other].sum() / (constant + t[other].sum()) - 1e-12
        assert (kept <= mine).all() and int(mine.sum()) <= most


def test_the_mask_by_hand() -> None:
    """The strongest of a layer stay; of the rest, the one with the greatest gradient comes back."""
    params = {"a": torch.tensor([3.0, -2.0, 0.1, 0.0]), "b": torch.tensor([[1.0, 0.2]])}
    used = {"a": torch.tensor([1, 1, 1, 0]).bool(), "b": torch.ones(1, 2).bool()}
    gain = {"a": torch.tensor([0.1, 0.1, 0.0, 9.0]), "b": torch.tensor([[0.1, 0.0]])}
    rule = Reconfigure(rate=0.5, constant=1.0)
    new = rule.chosen(params, used, gain, 0)
    # one of three in a and one of two in b are candidates (0.1 and 0.2); the pruned one has the gradient
    assert new["a"].tolist() == [True, True, False, True] and new["b"].tolist() == [[True, False]]
    few = Reconfigure(rate=0.5, constant=1.0, density=0.5).chosen(params, used, gain, 0)
    assert few["a"].tolist() == [True, True, False, False] and few["b"].tolist() == [[True, False]]


def test_a_weight_that_takes_long_has_to_be_worth_it() -> None:
    """By hand: of two weights whose gain is 2 one takes one second, the other nine; as much gain and time is kept."""
    params = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([3.0, 0.0])}
    used = {k: torch.tensor([True, False]) for k in "ab"}
    gain = {k: torch.tensor([1.0, 2.0]) for k in "ab"}
    rule = Reconfigure(rate=0.0, constant=0.5)
    assert all(m.all() for m in rule.chosen(params, used, gain, 0).values())
    slow = replace(rule, times=(("a", 9.0), ("b", 1.0))).chosen(params, used, gain, 0)
    assert slow["b"].all() and slow["a"].all(), "2 / 9 is more than 4 / 21, c being 10"
    quick = replace(rule, constant=0.0, times=(("a", 9.0), ("b", 1.0))).chosen(params, used, gain, 0)
    assert quick["b"].all() and quick["a"].tolist() == [True, False], "2 / 9 is less than 4 / 11"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_time_of_a_weight_is_that_of_its_operations_and_its_bytes(family: str) -> None:
    """At each place where its layer says something, three times; and four bytes either way."""
    sim = world(small(METHODS["prunefl"]), family, widths=(1.0,), samples=10)
    data = sim.site.shares.data  # type: ignore[attr-defined]
    x = data.prepare(data.x[:2])
    device = Device(flops=10.0, down=1e30, up=1e30)
    found = dict(times_of(sim.model, Fleet({0: device}, {0: 4}), x, 5))
    assert found.keys() == set(prunable(sim.model)) and min(found.values()) > 0
    one = {k: v * 10 / (6 * 4 * 5) for k, v in found.items()}  # at how many places a weight is used
    if family == "cnn":
        assert one == {"conv1.conv.weight": 64.0, "conv2.conv.weight": 16.0, "dense1.linear.weight": 1.0}
    if family == "lstm":
        assert set(one.values()) == {7.0}, "at every token"
    if family in ("cnn", "resnet", "convnet", "mlp"):  # nothing but these products, and the head's
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            copy.deepcopy(sim.model.net).eval()(x[:1])
        head = sim.model.whole[f"{sim.model.head}.weight"].numel
        assert counter.get_total_flops() == 2 * (head + sum(n * sim.model.whole[k].numel for k, n in one.items()))
    far = dict(times_of(sim.model, Fleet({0: Device(flops=1e30, down=4.0, up=2.0)}, {0: 4}), x, 5))
    assert far == pytest.approx(dict.fromkeys(far, 1 + 2))
    ready, _ = fitted(sim.method, sim.model, sim.fleet, data, sim.key)
    assert dict(ready.merge.times) == dict(times_of(sim.model, sim.fleet, x, 1))  # type: ignore[attr-defined]
    assert not fitted(METHODS["prunefl"](variant="fedlps"), sim.model, sim.fleet, data, sim.key)[0].merge.times  # type: ignore[attr-defined]


def test_nothing_is_pruned_at_rate_zero() -> None:
    params = {"a": torch.randn(20, generator=KEY.torch())}
    used = {"a": torch.rand(20, generator=KEY.at(1).torch()) < 0.5}
    gain = {"a": torch.rand(20, generator=KEY.at(2).torch())}
    new = Reconfigure(rate=0.0).chosen(params, used, gain, 0)
    assert (used["a"] <= new["a"]).all()
