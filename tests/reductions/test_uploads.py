"""Compressed uploads: without loss they are uniform averaging."""

from __future__ import annotations

import pytest
import torch

from fedquilt import codec
from fedquilt.codec import TopK, Uniform
from fedquilt.drive.sim import Now, Simulator
from fedquilt.drive.wire import decode_reply
from fedquilt.methods import METHODS
from fedquilt.parts.codecs import Coded
from fedquilt.parts.schedule import Sync

from ..world import play, replace, small, world
from .test_core import bits_of, end

ROUNDS = 3
FAMILIES = ("cnn", "lstm", "transformer")


@pytest.mark.parametrize("family", FAMILIES)
def test_fedcom_that_keeps_everything_is_uniform_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the rounding of differences; the codec is used in every reply, by the client and by the server."""
    calls = [0]
    real = TopK.decode

    def counted(*args: object) -> object:
        calls[0] += 1
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(TopK, "decode", counted)
    all_of_it = end("fedcom", family, codec="topk:1", feedback=False)
    assert calls[0] >= 2 * ROUNDS * 5
    plain = end("fedavg", family, weight="uniform")
    near = end("fedcom", family, codec="topk:0.9", feedback=False)
    for k, v in plain.state.params.items():
        assert torch.allclose(all_of_it.state.params[k].double(), v.double(), rtol=1e-5, atol=1e-6), k
    assert any(not torch.allclose(near.state.params[k], v, rtol=1e-3) for k, v in plain.state.params.items())


def test_variants_are_what_they_say() -> None:
    paper, seed = METHODS["fedcom"](), METHODS["fedcom"](variant="seed")
    assert paper.local.codec == Uniform(8) and not paper.local.feedback
    assert seed.local.codec == TopK(0.6) and not seed.local.feedback
    assert METHODS["fedcom"](codec="topk:0.1").local.feedback
    assert bits_of(end("fedcom", "cnn")) != bits_of(end("fedcom", "cnn", variant="seed"))


def test_eight_bits_cost_a_quarter_and_hardly_differ() -> None:
    coded, plain = (world(small(METHODS[n]), "cnn") for n in ("fedcom", "fedavg"))
    (a, told), (b, whole) = play(coded, 3), play(plain, 3)
    up, full = (sum(c["up"] for r in t for c in r.clients) for t in (told, whole))
    assert up < 0.4 * full
    gap = sum(float((a.state.params[k] - b.state.params[k]).square().sum()) for k in coded.model.trainable)
    moved = sum(
        float((b.state.params[k] - plain.begin().state.params[k]).square().sum()) for k in coded.model.trainable
    )
    assert 0 < gap < 0.01 * moved


def test_the_server_steps_by_its_own_rate() -> None:
    """By hand: with two clients whose codes are known, the model moves by the rate times the mean change."""
    sim = world(small(METHODS["fedcom"], server_lr=0.5, codec="qsgd:4"), "mlp", clients=2)
    start = sim.begin().state
    orders = sim.method.plan(start, sim.fleet, sim.model, sim.key, (), sim.run)
    replies = [decode_reply(d.reply or b"", o) for d, o in zip(sim.site.work(orders), orders, strict=True)]
    now, _ = play(sim, 1)
    for k in sim.model.trainable:
        a, b = (r.params[k].double() - start.params[k] for r in replies)
        assert torch.allclose(now.state.params[k].double() - start.params[k], 0.25 * (a + b), atol=1e-7)


def test_any_method_can_send_in_a_code() -> None:
    """A part for all: the sub-models of FedRolex in eight bits are on average what they are without."""
    plain = small(METHODS["fedrolex"])
    sim = world(replace(plain, local=Coded(plain.local, Uniform(8))), "cnn")
    now, told = play(sim, 2)
    assert all(c["outcome"] == "accepted" for r in told for c in r.clients)
    _, whole = play(world(plain, "cnn"), 2)
    assert sum(c["up"] for c in told[0].clients) < 0.6 * sum(c["up"] for c in whole[0].clients)
    assert now.state.round == 2 and codec.codec_of("uniform") == Uniform(8)


# ---- fedcomgate
def drift(sim: Simulator, now: Now, name: str = "drift") -> list[dict[str, torch.Tensor]]:
    kept = [sim.site.memories.load(i, now.state.versions[i]).tensors for i in range(len(sim.fleet))]
    return [{k.removeprefix(name + "/"): v for k, v in m.items() if k.startswith(name + "/")} for m in kept]


@pytest.mark.parametrize("family", FAMILIES)
def test_fedcomgate_before_it_has_a_correction_is_fedcom(family: str) -> None:
    gate, com = (world(small(METHODS[n]), family) for n in ("fedcomgate", "fedcom"))
    (a, _), (b, _) = play(gate, 1), play(com, 1)
    assert bits_of(a) == bits_of(b) and not any(drift(gate, a))
    (a, _), (b, _) = play(gate, 1, a), play(com, 1, b)
    assert bits_of(a) != bits_of(b)


def test_a_client_alone_needs_no_correction() -> None:
    gate, com = (world(small(METHODS[n]), "cnn", clients=1) for n in ("fedcomgate", "fedcom"))
    (a, _), (b, _) = play(gate, 3), play(com, 3)
    [own] = drift(gate, a)
    assert own and not any(v.any() for v in own.values()) and bits_of(a) == bits_of(b)


def test_with_everybody_the_corrections_add_up_to_zero() -> None:
    sim = world(small(METHODS["fedcomgate"]), "cnn-group")
    now, _ = play(sim, 4)
    every = drift(sim, now)
    for k in sim.model.trainable:
        size = max(float(d[k].abs().max()) for d in every)
        assert size > 0 and torch.stack([d[k] for d in every]).sum(0).abs().max() < 1e-4 * size + 1e-6


def test_the_correction_by_hand() -> None:
    """Two clients, two rounds: half the gap of what they sent, over steps times the learning rate."""
    sim = world(small(METHODS["fedcomgate"], codec="qsgd:16"), "mlp", clients=2)
    now, _ = play(sim, 1)
    first = drift(sim, now, "told")
    now, told = play(sim, 1, now)
    second = drift(sim, now)
    paid = told[0].clients[0]["steps"] * 0.05
    for k in sim.model.trainable:
        gap = (first[1][k] - first[0][k]) / 2 / paid
        assert torch.allclose(second[0][k], gap, atol=1e-5) and torch.allclose(second[1][k], -gap, atol=1e-5)


def test_who_did_not_take_part_keeps_its_correction() -> None:
    sim = world(replace(small(METHODS["fedcomgate"]), schedule=Sync(0.4)), "mlp")
    now, seen = sim.begin(), set[int]()
    for _ in range(6):
        note = now.state.notes.get("merge") or {"rounds": {}, "last": {}}
        assert set(note["rounds"]) == {str(t) for t in note["last"].values()}, "no more is held than somebody needs"
        orders = sim.method.plan(now.state, sim.fleet, sim.model, sim.key, (), sim.run)
        assert all(bool(o.extra) == (o.client in seen) for o in orders)
        seen |= {o.client for o in orders}
        before = now
        now, _ = play(sim, 1, now)
        idle = set(range(5)) - {o.client for o in orders}
        assert all(now.state.versions.get(i) == before.state.versions.get(i) for i in idle)
