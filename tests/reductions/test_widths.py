"""Methods of nested and of chosen sub-models: their limits, and who is averaged with whom."""

from __future__ import annotations

import pytest
import torch

from fedquilt.cover import count_units, put
from fedquilt.drive.score import score
from fedquilt.drive.sim import Now, Simulator
from fedquilt.drive.wire import decode_reply
from fedquilt.methods import METHODS
from fedquilt.parts.distil import SelfDistil
from fedquilt.parts.importance import Important
from fedquilt.parts.nested import Nested
from fedquilt.types import Order, Reply

from ..world import play, replace, small, world
from .test_core import bits_of, counted, end

FAMILIES = ("cnn", "resnet", "lstm", "transformer", "mlp-regression")
families = pytest.mark.parametrize("family", FAMILIES)


def exchanged(sim: Simulator, now: Now) -> list[tuple[Order, Reply]]:
    """The orders and replies of the next round."""
    orders = sim.method.plan(now.state, sim.fleet, sim.model, sim.key, (), sim.run)
    done = sim.site.work(orders)
    return [(o, decode_reply(d.reply or b"", o)) for o, d in zip(orders, done, strict=True)]


# ---- fjord
@families
def test_fjord_of_one_width_is_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Nested)
    one = end("fjord", family, distil=None, widths=(1.0,))
    assert calls[0] == 3 * 5
    two = end("fjord", family, distil=None, widths=(0.5, 1.0))
    assert bits_of(one) == bits_of(end("fedavg", family)) != bits_of(two)


def test_a_teacher_of_one_width_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pull of the widest towards itself has no gradient; its loss is the loss."""
    calls = counted(monkeypatch, SelfDistil)
    taught = end("fjord", "cnn", widths=(1.0,), distil=1.0)
    assert calls[0] >= 3 * 5 * 3
    plain = end("fedavg", "cnn")
    assert all(torch.allclose(v, taught.state.params[k], atol=1e-5) for k, v in plain.state.params.items())


def test_capacity_decides_who_is_averaged() -> None:
    """By hand, each coordinate: the mean by samples over those whose tier has it; beyond the widest tier it stays."""
    sim = world(small(METHODS["fjord"], distil=None), "cnn", widths=(0.2, 0.4, 0.5))
    start = sim.begin()
    pairs = exchanged(sim, start)
    now, _ = play(sim, 1)
    name = "conv2.conv.weight"  # of 16 and 16 units
    tiers = {o.client: max(w for w in (0.2, 0.4) if w <= sim.fleet.devices[o.client].width) for o, _ in pairs}
    assert set(tiers.values()) == {0.2, 0.4}
    for row, column in ((0, 0), (2, 2), (3, 0), (5, 5), (6, 0), (15, 15)):
        told = [
            (r.params[name][row, column], r.weight)
            for o, r in pairs
            if max(row, column) < count_units(tiers[o.client], 16)
        ]
        was = start.state.params[name][row, column]
        want = sum(v.double() * n for v, n in told) / sum(n for _, n in told) if told else was
        assert torch.allclose(now.state.params[name][row, column].double(), torch.as_tensor(want).double(), atol=1e-6)
    after = now.state.params[name]
    assert torch.equal(after[6:], start.state.params[name][6:]) and not torch.equal(
        after[3:6], start.state.params[name][3:6]
    )


def test_each_width_has_statistics_of_its_own() -> None:
    """The statistics of a width are those of the clients that may draw it, and move with no other."""
    sim = world(small(METHODS["fjord"], distil=None), "cnn", widths=(0.2, 0.6))
    start = sim.begin().state
    sets = {k.partition("@")[2] for k in start.params if "@" in k}
    assert sets == {"0.2", "0.4", "0.6", "1"}
    now, _ = play(sim, 2)
    moved = {
        k.partition("@")[2]
        for k, v in now.state.params.items()
        if "running_mean@" in k and not torch.equal(v, start.params[k])
    }
    assert moved == {"0.2", "0.4", "0.6"}, "nobody draws 1"
    k = "conv1.norm.running_mean@0.2"
    assert torch.equal(now.state.params[k][3:], start.params[k][3:]), "a width has statistics of its own units alone"


def test_the_seeds_fjord_is_the_fixed_prefix_and_uses_what_it_trained_last() -> None:
    sim = world(small(METHODS["fjord"], variant="seed"), "cnn")
    now, _ = play(sim, 1)
    pairs = exchanged(sim, now)
    for o, r in pairs:
        width = sim.fleet.devices[o.client].width
        assert o.cover == r.cover == sim.model.prefix(width)
    fedavg = end("fedavg", "cnn")
    assert bits_of(end("fjord", "cnn", variant="seed")) == bits_of(fedavg)
    far = replace(now.state, params={k: v * 0 if v.is_floating_point() else v for k, v in now.state.params.items()})
    assert score(sim, far, range(5), ("test",))[:5] == score(sim, now.state, range(5), ("test",))[:5]


# ---- fedmp
@families
def test_fedmp_that_drops_nothing_is_uniform_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Important)
    full = end("fedmp", family, share=1.0)
    assert calls[0] == 3 * 5
    assert bits_of(full) == bits_of(end("fedavg", family, weight="uniform")) != bits_of(end("fedmp", family, share=0.9))


def test_the_weakest_units_are_dropped_and_the_rest_of_the_model_is_put_back() -> None:
    """By hand: units of least l1 norm are not sent; the mean is over whole models, with what was pruned."""
    sim = world(small(METHODS["fedmp"], share=0.5), "cnn")
    start = sim.begin()
    pairs = exchanged(sim, start)
    weight = start.state.params["conv1.conv.weight"]
    kept = weight.abs().sum((1, 2, 3)).sort(descending=True, stable=True).indices[:8].sort().values
    assert all(torch.equal(sim.model.units(o.cover)["conv1"], kept) for o, _ in pairs)
    now, _ = play(sim, 1)
    whole = [put(dict(start.state.params), r.cover, r.params) for _, r in pairs]
    for k, v in now.state.params.items():
        if v.is_floating_point():
            assert torch.allclose(v, torch.stack([w[k] for w in whole]).double().mean(0).to(v.dtype), atol=1e-6), k


def test_fedmps_bandit_gives_each_client_a_ratio_of_its_own() -> None:
    sim = world(small(METHODS["fedmp"]), "cnn", widths=(0.2, 1.0))
    now, sizes = sim.begin(), []
    for _ in range(4):
        sizes.append([o.cover.numel for o, _ in exchanged(sim, now)])
        now, _ = play(sim, 1, now)
    assert len({tuple(s) for s in sizes}) == 4 and all(len(set(s)) > 1 for s in sizes)
    arms = now.state.notes["send"]["arms"]
    assert arms.keys() == set("01234") and all(len(a["pulls"]) == 4 for a in arms.values())


@pytest.mark.parametrize("name", ["fedmp", "hermes", "prunefl"])
def test_the_seeds_variant_chooses_once_and_then_keeps_to_it(name: str) -> None:
    sim = world(small(METHODS[name], variant="seed"), "cnn")
    now, first = sim.begin(), {}
    for t in range(3):
        for o, r in exchanged(sim, now):
            width = sim.fleet.devices[o.client].width
            assert o.cover == (sim.model.whole if t == 0 else first[o.client])
            assert first.setdefault(o.client, r.cover) == r.cover
            units = sim.model.units(r.cover)
            assert all(len(u) == count_units(width, sim.model.groups[g]) for g, u in units.items())
        now, told = play(sim, 1, now)
    up = {c["client"]: c["up"] for c in told[0].clients}
    small_one = min(sim.fleet.devices, key=lambda i: sim.fleet.devices[i].width)
    assert up[small_one] == min(up.values()) < 0.3 * max(up.values())
