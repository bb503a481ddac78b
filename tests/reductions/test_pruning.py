"""Methods that prune while they learn: their limits, what they keep, and what they share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedquilt.fleet import Fleet
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.parts.gated import Gated, OverlapMean
from fedquilt.parts.partition import Alternating, SomeLayers
from fedquilt.parts.reconfigure import Pruned, prunable
from fedquilt.parts.schedule import Sync

from ..world import play, replace, small, world
from .test_core import bits_of, counted, end
from .test_widths import exchanged

FAMILIES = ("cnn", "lstm", "mlp-regression")
families = pytest.mark.parametrize("family", FAMILIES)


# ---- hermes
def eager(**given: Any) -> Method:
    """A hermes that prunes in every round, whatever its accuracy."""
    method = small(METHODS["hermes"], **given)
    return replace(method, local=replace(method.local, threshold=-1e9))  # type: ignore[type-var]


@families
def test_hermes_that_never_prunes_is_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [counted(monkeypatch, c) for c in (Gated, OverlapMean)]
    never = end("hermes", family, lam=0.0, threshold=2.0)
    assert [c[0] for c in calls] == [3 * 5, 3]
    assert bits_of(never) == bits_of(end("fedavg", family)) != bits_of(end("hermes", family, lam=1e-3, threshold=2.0))
    assert bits_of(never) != bits_of(play(world(eager(lam=0.0), family, widths=(1.0,)), 3)[0])


def test_hermes_shrinks_and_shares_only_what_all_have() -> None:
    """By hand: the mean is over what every sub-model of the round holds; all else of the server stays as it was."""
    sim = world(eager(target=0.3, step=0.2), "cnn")
    now, before = sim.begin(), {}
    for t in range(4):
        pairs = exchanged(sim, now)
        old = now.state.params
        now, _ = play(sim, 1, now)
        for o, r in pairs:
            assert o.cover <= before.get(o.client, sim.model.whole) and r.cover <= before.get(o.client, sim.model.whole)
            assert sim.model.count(r.cover) < sim.model.count(before.get(o.client, sim.model.whole)) or t > 1
            before[o.client] = r.cover
        common = pairs[0][1].cover
        for _, r in pairs[1:]:
            common = common & r.cover
        size = sum(r.weight for _, r in pairs)
        for k in sim.model.trainable:
            inside = common[k].dense() if k in common else torch.zeros_like(old[k]).bool()
            assert torch.equal(now.state.params[k][~inside], old[k][~inside])
            mean = sum(r.weight / size * r.cover[k].put(old[k], r.params[k]).double() for _, r in pairs)
            assert torch.allclose(now.state.params[k][inside].double(), mean[inside], atol=1e-6)
    counts = {i: sim.model.count(c) for i, c in before.items()}
    assert all(n < 0.6 * sim.model.count() for n in counts.values())
    assert len(set(before.values())) > 1, "each its own"


def test_a_hermes_client_keeps_its_own_values_where_the_server_says_nothing() -> None:
    sim = world(eager(target=0.3, step=0.3, lr=0.0, lam=0.0), "cnn")
    now, _ = play(sim, 2)
    for o, r in exchanged(sim, now):
        mine = {k[6:]: v for k, v in sim.site.memories.load(o.client, o.version).tensors.items() if k[:6] == "model/"}
        for k in sim.model.trainable & r.cover.spans.keys():
            told = o.cover[k].put(mine[k], o.params[k]) if k in o.cover else mine[k]
            assert torch.equal(r.params[k], r.cover[k].take(told)), "nothing is learnt at rate 0"


# ---- prunefl
@families
def test_prunefl_that_never_chooses_is_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Pruned)
    never = end("prunefl", family, every=100)
    assert calls[0] == 3 * 5
    assert bits_of(never) == bits_of(end("fedavg", family)) != bits_of(end("prunefl", family, every=1, density=0.5))


def test_prunefl_has_one_mask_and_what_is_pruned_is_zero() -> None:
    sim = world(small(METHODS["prunefl"], every=2, density=0.4), "cnn")
    names, now = prunable(sim.model), sim.begin()
    for t in range(5):
        pairs = exchanged(sim, now)
        assert len({o.cover for o, _ in pairs}) == 1 and all(r.cover == o.cover for o, r in pairs)
        assert all(bool(r.extra) == ((t + 1) % 2 == 0) for _, r in pairs)
        now, told = play(sim, 1, now)
        mask = now.state.notes["merge"]["mask"]
        assert bool(mask) == (t > 0)
        if mask:
            assert sum(int(m.sum()) for m in mask.values()) <= 0.4 * sum(m.numel() for m in mask.values())
            assert all(not now.state.params[k][~mask[k]].any() for k in names)
    dense = play(world(small(METHODS["fedavg"]), "cnn"), 1)[1][0].record
    assert told[0].record["down"] < 0.75 * dense["down"]


def test_prunefl_begins_at_the_strongest_client_alone() -> None:
    method = METHODS["prunefl"](initial=2, every=100, density=0.5, fraction=1.0, epochs=1, batch=4)
    sim = world(method, "mlp")
    now, told = play(sim, 3)
    strongest = max(sim.fleet.devices, key=lambda i: sim.fleet.devices[i].width)
    assert [r.record["asked"] for r in told] == [[strongest], [strongest], [0, 1, 2, 3, 4]]
    first, _ = play(sim, 2)
    assert bits_of(now) != bits_of(first)
    again = play(world(METHODS["prunefl"](variant="fedlps", initial=2, fraction=1.0, epochs=1, batch=4), "mlp"), 4)[0]
    mask = again.state.notes["merge"]["mask"]
    assert sum(int(m.sum()) for m in mask.values()) <= 0.5 * sum(m.numel() for m in mask.values())


def test_who_is_left_takes_the_first_stage_where_the_strongest_is_away() -> None:
    method = METHODS["prunefl"](initial=2)
    fleet: Fleet = world(replace(method, schedule=Sync(1.0)), "mlp").fleet
    sim = world(method, "mlp")
    strongest = max(fleet.devices, key=lambda i: fleet.devices[i].width)
    chosen = method.select(sim.begin().state, fleet.without({strongest}), 3, sim.key)
    assert len(chosen) == 1 and chosen != [strongest]


# ---- fedselect
@families
def test_fedselect_without_own_weights_is_uniform_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Alternating)
    shared = end("fedselect", family, limit=0.0, epochs=2)
    assert calls[0] == 3 * 5
    uniform = end("fedavg", family, weight="uniform", epochs=2)
    assert bits_of(shared) == bits_of(uniform) != bits_of(end("fedselect", family, limit=0.5, every=1, epochs=2))


def test_own_weights_grow_to_the_limit_and_never_travel() -> None:
    """By hand: of each tensor's shared weights the quarter that moved most; each is the mean over who shares it."""
    sim = world(small(METHODS["fedselect"], variant="seed"), "mlp")
    now, grown = sim.begin(), {i: dict[str, torch.Tensor]() for i in range(5)}
    for t in range(5):
        pairs = exchanged(sim, now)
        old = now.state.params
        now, _ = play(sim, 1, now)
        for o, r in pairs:
            kept = sim.site.memories.load(o.client, now.state.versions[o.client]).tensors
            for k in (k for k in sim.model.trainable if len(sim.model.shapes[k]) > 1):
                mask = kept[f"mask/{k}"]
                was = grown[o.client].get(k, torch.zeros_like(mask))
                assert (was <= mask).all() and int(mask.sum()) <= 0.5 * mask.numel()
                assert t or int(mask.sum()) == int(0.25 * mask.numel())
                assert torch.equal(r.cover[k].dense(), ~mask) and torch.equal(o.cover[k].dense(), ~was)
                grown[o.client][k] = mask
        for k in sim.model.trainable:
            put = [(r.cover[k].put(old[k], r.params[k]).double(), r.cover[k].dense()) for _, r in pairs]
            n = sum(m.double() for _, m in put)
            mean = sum(v * m for v, m in put) / n.clamp(min=1)
            want = torch.where(n > 0, mean, old[k].double())
            assert torch.allclose(now.state.params[k].double(), want, atol=1e-6), k
    assert all(int(m.sum()) == int(0.5 * m.numel()) for own in grown.values() for m in own.values())


def test_a_client_whose_weights_are_all_its_own_learns_alone() -> None:
    """With everything its own after the first round, the weights of the server stay as they then were."""
    sim = world(small(METHODS["fedselect"], rate=1.0, limit=1.0, every=1), "mlp")
    start = sim.begin()
    now, _ = play(sim, 3)
    for k in sim.model.trainable:
        assert torch.equal(now.state.params[k], start.state.params[k]) == (len(sim.model.shapes[k]) > 1)


# ---- fedp3
@families
def test_fedp3_with_all_layers_is_uniform_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, SomeLayers)
    every = end("fedp3", family, layers="all", keep=0.5)
    assert calls[0] == 3 * 5
    assert bits_of(every) == bits_of(end("fedavg", family, weight="uniform"))
    if family != "mlp-regression":  # of one layer
        assert bits_of(every) != bits_of(end("fedp3", family, layers="one", keep=0.5))


def test_fedp3_tells_only_its_layers_and_sees_the_largest_weights_of_the_others() -> None:
    sim = world(small(METHODS["fedp3"], layers="one", keep=0.5), "mlp")
    start = sim.begin()
    for o, r in exchanged(sim, start):
        mine, other = (f"dense{1 + (o.client + j) % 2}.linear.weight" for j in (0, 1))
        assert mine in r.cover and other not in r.cover and "head.weight" in r.cover
        assert o.cover[mine].kind == "whole" and o.cover[other].kind == "mask"
        size = start.state.params[other].abs()
        inside = o.cover[other].dense()
        assert int(inside.sum()) == inside.numel() // 2 and size[inside].min() >= size[~inside].max()
    assert {s for i in range(4) for s in SomeLayers("random").own(sim.model, i, sim.key.at(i))} == {"dense1", "dense2"}
    with pytest.raises(ValueError, match="keep is a share"):
        SomeLayers(keep=0.0)


def test_fedp3s_second_pruning_moves_a_prefix_of_the_units_alone() -> None:
    """One step: of 16 units the first 8, 10, 12, 14 or all have moved, and not every client drew the same."""
    sim = world(small(METHODS["fedp3"], layers="all", least=0.5, batch=1000, momentum=0.9), "mlp", clients=12)
    drawn = set()
    for o, r in exchanged(sim, sim.begin()):
        moved = (r.params["dense1.linear.bias"] != o.params["dense1.linear.bias"]).nonzero().flatten()
        k = next(k for k in (8, 10, 12, 14, 16) if int(moved.max()) < k)
        weight = (r.params["dense2.linear.weight"] != o.params["dense2.linear.weight"]).nonzero()
        assert weight.max() < k
        drawn.add(k)
    assert len(drawn) > 1
    with pytest.raises(ValueError, match="least is a share"):
        METHODS["fedp3"](least=0.0)
