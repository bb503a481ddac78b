"""PruneFL's parts: squared gradients, those of pruned coordinates too, and the mask that they choose."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedquilt.cover import Cover, put, take
from fedquilt.fit import SGD, Fit
from fedquilt.model import Model
from fedquilt.parts.local import Train
from fedquilt.parts.reconfigure import Pruned, Reconfigure, greedy, prunable
from fedquilt.types import Reply

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, samples, task, tiny, weights

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
    for constant, most in ((0.5, 9), (5.0, 9), (5.0, int(kept.sum()) + 2), (50.0, 9)):
        mine = greedy(kept, g, constant, most)
        value = g[mine].sum() / (constant + mine.sum())
        others = (~kept).nonzero().flatten().tolist()
        for n in range(most - int(kept.sum()) + 1):
            for extra in combinations(others, n):
                some = kept.index_fill(0, torch.tensor(extra, dtype=torch.int64), True)
                assert value >= g[some].sum() / (constant + some.sum()) - 1e-12
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


def test_nothing_is_pruned_at_rate_zero() -> None:
    params = {"a": torch.randn(20, generator=KEY.torch())}
    used = {"a": torch.rand(20, generator=KEY.at(1).torch()) < 0.5}
    gain = {"a": torch.rand(20, generator=KEY.at(2).torch())}
    new = Reconfigure(rate=0.0).chosen(params, used, gain, 0)
    assert (used["a"] <= new["a"]).all()
