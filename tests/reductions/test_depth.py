"""DepthFL: its limits, how deep a device goes, heads that teach each other, and all of them in use."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from fedquilt.drive.sim import Now
from fedquilt.methods import METHODS
from fedquilt.models import build
from fedquilt.parts.control import Dynamic
from fedquilt.parts.depth import Mutual, costs, deepest
from fedquilt.task import Classification
from fedquilt.term import Output, Step, call

from ..engine.tiny import KEY
from ..world import play, replace, small, world
from .test_core import bits_of, counted
from .test_widths import exchanged

CNN = {"name": "cnn", "input": (1, 8, 8), "classes": 4, "conv": (4, 8), "norm": "none", "exits": True}


def run(name: str, family: str, tiers: tuple[float, ...] = (1.0,), **given: object) -> Now:
    return play(world(replace(small(METHODS[name], **given), exits=True), family, widths=tiers), 3)[0]


@pytest.mark.parametrize("family", ["cnn", "resnet", "lstm-tied", "mlp-regression"])
def test_whole_nets_with_the_last_head_alone_are_uniform_fedavg(family: str) -> None:
    last = run("depthfl", family, alpha=None, last=True)
    assert bits_of(last) == bits_of(run("fedavg", family, weight="uniform"))
    if family != "mlp-regression":  # one stage: there is no other head
        assert bits_of(last) != bits_of(run("depthfl", family, alpha=None, mutual=False))


def test_with_its_terms_it_is_feddyn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Dynamic)
    dyn = run("depthfl", "cnn", alpha=0.1, last=True)
    assert calls[0] == 3 and bits_of(dyn) == bits_of(run("feddyn", "cnn", alpha=0.1))
    assert bits_of(dyn) != bits_of(run("depthfl", "cnn", alpha=0.2, last=True))


def test_a_device_goes_as_deep_as_its_share_of_the_operations() -> None:
    """By hand: multiplications of a net of two stages on an 8x8 image, exits included."""
    model = build(CNN, KEY)
    first, whole = costs(model)
    one = 2 * (64 * 9 * 4) + 2 * 4 * 4
    assert first == one and whole == one + 2 * (16 * 9 * 4 * 8) + 2 * (8 * 4) * 4
    share = first / whole
    assert [deepest(model, w) for w in (0.01, share * 0.99, share, 0.99, 1.0)] == [1, 1, 1, 1, 2]
    assert deepest(build({**CNN, "exits": False}, KEY), 0.01) == 2, "no part of it is a net"


def test_a_shallow_client_neither_gets_nor_sends_deeper_stages() -> None:
    """Each tensor is the plain mean over those who hold it; with nobody so deep it stays, also under FedDyn."""
    for alpha in (None, 0.1):
        sim = world(small(METHODS["depthfl"], alpha=alpha), "cnn", widths=(0.1, 0.1, 0.1, 1.0, 1.0))
        start = sim.begin()
        pairs = exchanged(sim, start)
        now, _ = play(sim, 1)
        depths = {deepest(sim.model, sim.fleet.devices[o.client].width) for o, _ in pairs}
        assert len(depths) == 2
        for o, r in pairs:
            k = deepest(sim.model, sim.fleet.devices[o.client].width)
            assert r.cover == o.cover and set(o.cover.spans) == set(sim.model.upto(k).shapes)
        if alpha is None:
            for k in sim.model.trainable:
                told = [r.params[k].double() for _, r in pairs if k in r.cover]
                assert torch.allclose(now.state.params[k].double(), torch.stack(told).mean(0), atol=1e-6)
        sim = world(small(METHODS["depthfl"], alpha=alpha), "cnn", widths=(0.1,))
        now, _ = play(sim, 3)
        inside = sim.model.upto(1).shapes
        assert all(
            torch.equal(v, now.state.params[k]) != (k in inside)
            for k, v in start.state.params.items()
            if k in sim.model.trainable
        )


def test_all_heads_speak_with_the_same_voice() -> None:
    model = build(CNN, KEY)
    x = torch.randn(5, 1, 8, 8, generator=KEY.torch())
    out = call(model.net.eval(), model.params(), x, model.features)
    every = torch.stack([out.features[model.exits[0]], out.logits]).mean(0)
    assert torch.allclose(call(model.ensemble.net, model.params(), x).logits, every)
    assert torch.equal(call(model.net, model.params(), x).logits, out.logits), "the net itself is as it was"
    cut = model.upto(1)
    assert torch.equal(call(cut.ensemble.net, cut.params(), x).logits, call(cut.net, cut.params(), x).logits)


def test_heads_that_agree_teach_nothing_and_teaching_grows_over_the_rounds() -> None:
    y, same = torch.tensor([0, 1]), torch.randn(2, 3, generator=KEY.torch())

    def step(a: torch.Tensor, b: torch.Tensor) -> Step:
        nothing: object = SimpleNamespace()
        return Step(Classification(3), {}, {}, {}, {}, {}, same, y, Output(b, {"e": a}), nothing, nothing)  # type: ignore[arg-type]

    alone, taught = (Mutual(("e",), lam)(step(same, same)) for lam in (0.0, 1.0))
    assert torch.allclose(alone, taught) and torch.allclose(alone, torch.nn.functional.cross_entropy(same, y))
    other = same.flip(0)
    forth, back = Mutual(("e",), 1.0)(step(same, other)), Mutual(("e",), 1.0)(step(other, same))
    loss = torch.nn.functional.cross_entropy
    assert torch.allclose(forth - loss(same, y), back - loss(other, y), atol=1e-6) and forth > loss(same, y)
    local = METHODS["depthfl"](ramp=10).local
    sim = world(small(METHODS["depthfl"], ramp=10), "cnn", widths=(1.0,))
    [order, *_] = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key, (), sim.run)
    lams = []
    for t in (0, 5, 10, 20):
        work, _ = local._own(replace(order, round=t), replace(sim.site.client(order, "work"), model=sim.model))
        lams.append(work.train.terms[-1].lam)
    assert lams == [math.exp(-5), math.exp(-1.25), 1.0, 1.0]
