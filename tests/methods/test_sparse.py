"""Masks of single weights: how many, which go, which come, and what never moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from fedquilt.cover import Cover, Params
from fedquilt.drive.sim import Simulator
from fedquilt.drive.wire import decode_reply, encode_order
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.parts.masks import complement, erk, largest, masked, packed, prunable, regrown, unpacked
from fedquilt.parts.sparse import Sparsified
from fedquilt.types import Order, Reply, State

from ..laws.strategies import all_bits
from ..world import FAMILIES, play, small, world
from .hand import reply, state

some = pytest.mark.parametrize("family", ["cnn", "resnet-group", "lstm-tied", "mlp"])


def rounds(sim: Simulator, n: int) -> Iterator[tuple[State, Order, Reply]]:
    """What client 0 is sent and answers in each round, and the state before it."""
    now = sim.begin()
    for _ in range(n):
        orders = sim.method.plan(now.state, sim.fleet, sim.model, sim.key, (), sim.run)
        first = orders[0]
        before = now.state
        [done] = sim.site.work([first])
        yield before, first, decode_reply(done.reply or b"", first)
        now, _ = sim.round(now)


def eager(**given: Any) -> Method:
    """LotteryFL for whom every model is good."""
    method = small(METHODS["lotteryfl"], **given)
    return replace(method, local=replace(method.local, accuracy=-1e9))  # type: ignore[type-var]


def dense(params: Params, cover: Cover, shapes: Any) -> Params:
    return {k: cover[k].put(torch.zeros(shapes[k]), v) for k, v in params.items()}


# ---- the pieces
def test_the_largest_are_kept_and_the_first_of_equals() -> None:
    t = torch.tensor([[1.0, -3.0, 2.0], [2.0, 0.0, -2.0]])
    assert largest(t, 3).tolist() == [[False, True, True], [True, False, False]]
    among = torch.tensor([[True, False, True], [False, True, True]])
    assert largest(t, 2, among).tolist() == [[False, False, True], [False, False, True]]
    assert not largest(t, 0).any() and largest(t, 6).all()


def test_erk_is_the_density_in_all_and_no_tensor_is_more_than_whole() -> None:
    shapes = {"a": (2, 3), "b": (100, 100), "c": (20, 10, 3, 3), "d": (10, 4)}
    for density in (0.05, 0.2, 0.5, 0.9, 1.0):
        keep = erk(shapes, density)
        total = sum(math.prod(s) for s in shapes.values())
        assert abs(sum(keep.values()) - density * total) <= len(shapes)
        assert all(1 <= n <= math.prod(shapes[k]) for k, n in keep.items())
    small_ones = erk(shapes, 0.1)
    free = [k for k in shapes if small_ones[k] < math.prod(shapes[k])]
    ratios = [small_ones[k] / math.prod(shapes[k]) / (sum(shapes[k]) / math.prod(shapes[k])) for k in free]
    assert free == ["b", "c"] and ratios[0] == pytest.approx(ratios[1], rel=0.01), "in proportion to sum over product"


@pytest.mark.parametrize("shape", [(3,), (8,), (5, 7), (2, 3, 3, 3)])
def test_a_packed_mask_comes_back(shape: tuple[int, ...]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    bits = packed(mask)
    assert bits.dtype == torch.uint8 and bits.shape == (-(-mask.numel() // 8),)
    assert torch.equal(unpacked(bits, shape), mask)


def test_as_many_grow_as_go_and_none_of_them_at_once() -> None:
    weight = torch.tensor([5.0, 1.0, 4.0, 2.0, 0.0, 0.0, 0.0])
    alive = torch.tensor([True, True, True, True, False, False, False])
    wish = torch.tensor([9.0, 9.0, 9.0, 9.0, 1.0, -3.0, 2.0])
    assert regrown(weight, alive, wish, 0.5).tolist() == [True, False, True, False, False, True, True]
    assert torch.equal(regrown(weight, alive, wish, 0.0), alive)
    assert regrown(weight, alive, wish, 1.0).sum() == 4, "no more than there is room for"


# ---- LotteryFL
@some
def test_a_ticket_shrinks_from_the_first_values(family: str) -> None:
    sim = world(eager(target=0.5, momentum=0.9), family)
    names, first, seen = prunable(sim.model), sim.model.params(), []
    for before, order, got in rounds(sim, 9):
        mine = {k: got.cover[k].numel if k in got.cover else 0 for k in names}
        sent = {k: order.cover[k].numel if k in order.cover else 0 for k in names}
        left = sum(sent.values()) / sum(first[k].numel() for k in names)
        cut = {k: n - math.floor(0.1 * n) for k, n in sent.items()} if left > 0.5 else sent
        assert mine == cut and got.cover <= order.cover
        full = dense(order.params, order.cover, sim.model.shapes)
        for k in names:
            gone = order.cover[k].dense() & ~(got.cover[k].dense())
            kept = got.cover[k].dense()
            assert not gone.any() or full[k][gone].abs().max() <= full[k][kept].abs().min()
        seen.append(left)
        assert before.round == len(seen) - 1
    assert seen == sorted(seen, reverse=True) and seen[-1] == seen[-2] <= 0.5 < seen[-4]


@some
def test_after_pruning_a_ticket_starts_again(family: str) -> None:
    """With no step to speak of, what comes back is what the training began from."""
    for rewind in (True, False):
        sim = world(eager(lr=0.0, rewind=rewind), family)
        start = sim.begin().state
        moved = replace(start, params={k: v + 0.5 for k, v in start.params.items()})
        order = sim.method.plan(moved, sim.fleet, sim.model, sim.key, (), sim.run)[0]
        got = decode_reply(sim.site.work([order])[0].reply or b"", order)
        source = start.params if rewind else moved.params
        assert got.cover != order.cover
        for k in sim.model.trainable & got.cover.spans.keys():
            assert torch.equal(got.params[k], got.cover[k].take(source[k]))


def test_a_ticket_is_judged_on_validation_data_and_only_a_good_one_is_cut() -> None:
    chance = world(small(METHODS["lotteryfl"], accuracy=2.0), "cnn")
    now, told = play(chance, 2)
    assert all(r.cover <= o.cover and r.cover == o.cover for _, o, r in rounds(chance, 2))
    assert now.state.round == 2 and told[0].record["outcomes"] == {"accepted": 5}


# ---- FedSpa
@some
def test_masks_wander_and_keep_their_size(family: str) -> None:
    sim = world(small(METHODS["fedspa"], density=0.4, horizon=4, momentum=0.9), family)
    names, orders = prunable(sim.model), []
    keep = erk({k: sim.model.shapes[k] for k in names}, 0.4)
    for _, order, got in rounds(sim, 6):
        assert {k: order.cover[k].numel for k in names} == keep and got.cover == order.cover
        orders.append(order.cover)
    changed = [sum((a[k].dense() & ~b[k].dense()).sum() for k in names) for a, b in pairwise(orders)]
    shares = [0.25 * (1 + math.cos(math.pi * t / 4)) for t in range(5)]
    room = {k: sim.model.whole[k].numel - n for k, n in keep.items()}
    # a cut share that comes to nothing still takes one: rounded up; at the horizon it is nothing
    assert changed == [sum(min(math.ceil(s * n - 1e-9), room[k]) for k, n in keep.items()) for s in shares]
    assert changed[-1] == 0 < changed[0]


def test_at_the_start_masks_are_each_clients_own_and_random() -> None:
    sim = world(small(METHODS["fedspa"]), "cnn")
    orders = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key, (), sim.run)
    assert len({o.cover for o in orders}) == 5
    again = sim.method.plan(replace(sim.begin().state, round=3), sim.fleet, sim.model, sim.key, (), sim.run)
    assert [o.cover for o in again] == [o.cover for o in orders], "until it has trained, a client's mask is the same"


def test_what_grows_has_the_largest_gradient() -> None:
    weight, alive = torch.zeros(6), torch.tensor([True, True, False, False, False, False])
    grad = torch.tensor([9.0, 9.0, 0.1, -0.9, 0.3, 0.2])
    assert regrown(weight, alive, grad, 0.5).nonzero().flatten().tolist() == [0, 3]
    still = world(small(METHODS["fedspa"], grow="nothing"), "mlp")
    covers = [o.cover for _, o, _ in rounds(still, 3)]
    assert covers[0] == covers[1] == covers[2]


@some
@pytest.mark.parametrize("name", ["lotteryfl", "fedspa"])
def test_what_is_masked_is_zero_in_what_is_served_and_costs_no_bytes(name: str, family: str) -> None:
    method = eager(momentum=0.9) if name == "lotteryfl" else small(METHODS[name], momentum=0.9)
    sim = world(method, family)
    now, told = play(sim, 3)
    order = sim.method.order(now.state, 0, sim.fleet, sim.model, sim.key, sim.run)
    client = sim.site.client(order, "serve")  # type: ignore[attr-defined]
    served = sim.site.engine._drive(sim.method.local.serve(order, client), [])  # type: ignore[attr-defined]
    for k in prunable(sim.model):
        inside = order.cover[k].dense()
        assert not served.params[k][~inside].any() and torch.equal(
            served.params[k][inside], now.state.params[k][inside]
        )
    full = play(world(small(METHODS["fedavg"]), family), 1)[1][0].clients[0]
    row = next(c for c in told[-1].clients if c["client"] == 0)
    assert row["down"] < 0.85 * full["down"] + 600 and len(encode_order(order)) > order.cover.numel * 4
    assert row["flops"] >= full["flops"] and row["ideal"] < row["flops"], "zeros are charged, unless one asks"


# ---- CS
@some
def test_down_and_up_are_complements(family: str) -> None:
    sim = world(small(METHODS["cs"], sparsity=0.6), family)
    names = prunable(sim.model)
    for r, (before, order, got) in enumerate(rounds(sim, 3)):
        for k in names:
            n = sim.model.whole[k].numel
            kept = n - math.floor(0.6 * n + 1e-9)
            if r == 0:
                assert order.cover[k].kind == got.cover[k].kind == "whole"
                continue
            assert order.cover[k].numel == kept and got.cover[k].numel == n - kept
            assert (order.cover[k].dense() ^ got.cover[k].dense()).all()
            assert int((before.params[k] != 0).sum()) == kept
        rest = set(sim.model.shapes) - set(names)
        assert all(got.cover[k].kind == "whole" for k in rest)


def test_the_server_of_cs_by_hand() -> None:
    """Two of four weights are left; two clients of weight 1 and 3 say what became of the others."""
    p = {"w": torch.tensor([[4.0, 0.0], [0.0, -2.0]]), "b": torch.tensor([1.0])}
    cover = masked_by_hand(p)
    up = Cover({"w": (Cover.whole(p) - cover)["w"], "b": cover["b"]})
    new = [
        {"w": torch.tensor([1.0, -3.0]), "b": torch.tensor([2.0])},
        {"w": torch.tensor([5.0, 1.0]), "b": torch.tensor([4.0])},
    ]
    replies = [
        replace(reply(i, n, p, weight=w, cover=up)) for i, (n, w) in enumerate(zip(new, (1.0, 3.0), strict=True))
    ]
    part = Sparsified(0.5, 1.5)
    full = part.dense(state(p), replies)
    assert full["w"].tolist() == [[4.0, 6.0], [0.0, -2.0]] and full["b"].tolist() == [3.5]
    assert part(state(p), replies)["w"].tolist() == [[4.0, 6.0], [0.0, 0.0]]
    first = {"w": torch.tensor([[4.0, 1.0], [1.0, -2.0]]), "b": torch.tensor([1.0])}
    plain = part.dense(state(first), [reply(0, {k: v + 1 for k, v in first.items()}, first)])
    assert plain["w"].tolist() == [[5.0, 2.0], [2.0, -1.0]], "before anything is pruned it is a mean"


def masked_by_hand(p: Params) -> Cover:
    return Cover.masks({"w": p["w"] != 0, "b": torch.ones(1, dtype=torch.bool)})


def test_almost_nothing_pruned_is_almost_no_update() -> None:
    """Unlike other methods' limits, that of CS is not FedAvg: what is sent down is never sent back."""
    sim = world(small(METHODS["cs"], sparsity=0.001), "mlp")
    now, _ = play(sim, 1)
    after, _ = play(sim, 2, now)
    for k in prunable(sim.model):
        moved = int((now.state.params[k] != after.state.params[k]).sum())
        assert moved <= math.ceil(0.001 * sim.model.whole[k].numel) * 4
    with pytest.raises(ValueError, match="sparsity"):
        METHODS["cs"](sparsity=0.0)
    assert METHODS["cs"](variant="seed").merge == Sparsified(0.5, 1.0)


def test_the_complement_of_everything_is_everything() -> None:
    sim = world(small(METHODS["cs"]), "cnn")
    m = sim.model
    assert complement(m.whole, m) == m.whole
    one = masked(m, {k: largest(m.params()[k], 1) for k in prunable(m)})
    assert (complement(one, m) | one) == m.whole


# ---- reductions: with its difference off, each is uniform FedAvg to the bit
OFF = {"lotteryfl": {"accuracy": math.inf}, "fedspa": {"density": 1.0}}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", OFF)
def test_without_a_mask_it_is_uniform_fedavg(name: str, family: str) -> None:
    def end(method: Method) -> Any:
        return all_bits(dict(play(world(method, family), 2)[0].state.params))

    off, parent = small(METHODS[name], **OFF[name]), small(METHODS["fedavg"], weight="uniform")
    near = eager() if name == "lotteryfl" else small(METHODS[name], density=0.9)
    assert end(off) == end(parent) != end(near)
