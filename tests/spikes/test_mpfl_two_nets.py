"""Mishra and Gupta (TOSN 2023), a participant with means to spare: a net larger than the server's, and back again."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.cover import Cover, Params
from fedquilt.fit import SGD, Fit, Fitted, Peer
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.parts.distil import Attention, Distil, PeerLoss
from fedquilt.parts.local import received, section
from fedquilt.types import Client, Grant, Memory, Order, Part, Reply, Served

from ..engine.tiny import HEAVY, KEY, SPECS, client, drive, engine, order, same, samples, task, tiny, weights

LARGE = {**SPECS["cnn"], "conv": (4, 7, 6), "dense": ()}


# ---- the piece
@dataclass(frozen=True)
class Colossal(Part):
    """Trains a larger net of its own, taught by the server's; then the server's, taught by two of the larger.

    One is trained already.  The other begins anew, learns at the same time, and has its first block in
    common with the server's net; after ``first`` epochs it is dropped.
    """

    optim: SGD = SGD()
    epochs: int = 3
    first: int = 2
    batch: int = 4
    shares: tuple[float, float, float, float] = (0.5, 0.2, 0.3, 0.5)

    def grant(self, cover: Cover, model: Model) -> Grant:
        return Grant(cover)

    def fit(self, order: Order, client: Client, model: Model, start: Params, phase: str, **more: Any) -> Fit:
        settings = {"optim": self.optim.at(order.round), "batch": self.batch, "norm": order.norm} | more
        return Fit(model, client.task, start, client.train, client.key.at(phase), **settings)

    def __call__(self, order: Order, client: Client) -> Any:
        base, small = received(order, client)[0], client.model
        large = build(client.memory.spec, client.key.at("large"))
        mine = section(client.memory, "model") or large.params()
        half = {
            "main": 0.5,
            "epochs": self.epochs,
            "terms": (Distil("base", 0.5),),
            "peers": {"base": Peer(small, base)},
        }
        tuned: Fitted = yield self.fit(order, client, large, mine, "grow", **half)

        a, b, c, d = self.shares
        taught = (Attention("trained", b), Distil("trained", c))
        trained = {"trained": Peer(large, tuned.params)}
        block = {k: k for k in sorted(small.trainable) if k.startswith(small.stages[0] + ".")}
        fresh = {"fresh": Peer(large, build(client.memory.spec, client.key.at("fresh")).params(), True, block)}
        both = {"main": a, "epochs": self.first, "terms": (*taught, PeerLoss("fresh", d)), "peers": trained | fresh}
        out: Fitted = yield self.fit(order, client, small, base, "both", **both)
        rest = {"main": a, "epochs": self.epochs - self.first, "terms": taught, "peers": trained}
        out = yield self.fit(order, client, small, out.params, "rest", **rest)

        n = float(client.counts["train"])
        reply = Reply(
            order.client, order.round, {k: out.params[k] for k in order.cover}, order.cover, n, {"loss": out.loss}
        )
        return reply, Memory({f"model/{k}": v for k, v in tuned.params.items()}, spec=client.memory.spec)

    def serve(self, order: Order, client: Client) -> Any:
        large = build(client.memory.spec, client.key.at("large"))
        return Served(large, section(client.memory, "model") or large.params(), order.norm)
        yield


# ---- its invariants
def requests(local: Colossal) -> tuple[Reply, Memory, list[Fit]]:
    m, run = tiny("cnn"), engine("cnn")
    c = client(m, task("cnn"), memory=Memory(spec=LARGE))
    reply, memory = drive(run, local(order(weights(m), m.whole), c))
    return reply, memory, run.asked  # type: ignore[return-value]


def module(model: Model, p: Params, train: bool) -> nn.Module:
    net = copy.deepcopy(model.net).train(train)
    net.load_state_dict(p)
    return net


def stages(net: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What a net says, and the attention maps of its blocks."""
    maps = []
    for name, layer in net.named_children():
        x = layer(x)
        if name.startswith("conv"):
            a = x.pow(2).mean(1).flatten(1)
            maps.append(a / a.norm(dim=1, keepdim=True).clamp(min=1e-12))
    return x, maps


def soft(student: Tensor, teacher: Tensor) -> Tensor:
    return 16 * F.kl_div((student / 4).log_softmax(1), (teacher / 4).softmax(1), reduction="batchmean")


@pytest.mark.parametrize("optim", [SGD(0.1), HEAVY], ids=["plain", "heavy"])
def test_it_is_the_loop_with_three_modules(optim: SGD) -> None:
    reply, memory, (grow, both, rest) = requests(Colossal(optim))
    x, y = samples("cnn", 10, KEY.at("train"))
    large, small = grow.model, both.model
    base = module(small, both.start, False)

    def loop(f: Fit, loss: Any, trained: list[nn.Parameter]) -> None:
        hand = torch.optim.SGD(trained, optim.lr, optim.momentum, weight_decay=optim.weight_decay)
        for rows in f.batches(10):
            hand.zero_grad()
            loss(x[rows], y[rows]).backward()
            if optim.clip is not None:
                nn.utils.clip_grad_norm_(trained, optim.clip)
            hand.step()

    # the larger net, taught by the server's
    mine = module(large, grow.start, True)

    def grown(a: Tensor, b: Tensor) -> Tensor:
        out = mine(a)
        return 0.5 * F.cross_entropy(out, b) + 0.5 * soft(out, base(a).detach())

    loop(grow, grown, list(mine.parameters()))
    mine = near(mine, memory).eval()
    # the server's net, taught by it, beside a new one whose first block is its own
    net, fresh = module(small, both.start, True), module(large, dict(both.peers["fresh"].params), True)
    for k in both.peers["fresh"].share:
        where, _, leaf = k.rpartition(".")
        setattr(fresh.get_submodule(where), leaf, net.get_parameter(k))

    def taught(a: Tensor, b: Tensor) -> Tensor:
        (out, maps), (said, theirs) = stages(net, a), stages(mine, a)
        gaps = sum((p - q.detach()).pow(2).sum(1).mean() for p, q in zip(maps, theirs, strict=False))
        return 0.5 * F.cross_entropy(out, b) + 0.2 * gaps + 0.3 * soft(out, said.detach())

    union = list({id(p): p for p in (*net.parameters(), *fresh.parameters())}.values())
    assert len(union) == len(small.trainable) + len(large.trainable) - 4
    loop(both, lambda a, b: taught(a, b) + 0.5 * F.cross_entropy(fresh(a), b), union)
    loop(rest, taught, list(net.parameters()))
    expected = net.state_dict()
    assert all(torch.allclose(v, expected[k], atol=1e-4) for k, v in reply.params.items())
    idle = {"conv1.conv.bias", "conv2.conv.bias"}  # batch norm takes them away again: their gradient is rounding
    assert all(not torch.equal(v, both.start[k]) for k, v in reply.params.items() if k not in idle)


def near(net: nn.Module, memory: Memory) -> nn.Module:
    """The module that was trained by hand, checked against what the client remembers."""
    held = section(memory, "model")
    assert all(torch.allclose(v, held[k], atol=1e-4) for k, v in net.state_dict().items())
    return net


def test_gradients_add_up_on_the_tensors_that_are_shared() -> None:
    _, _, (_, both, _) = requests(Colossal(SGD(0.1)))
    both = replace(both, epochs=1, batch=10, optim=SGD(0.1))
    run, shared = engine("cnn"), both.peers["fresh"].share
    alone = replace(both, terms=both.terms[:2], peers={"trained": both.peers["trained"]})
    only = replace(both, main=0.0, terms=both.terms[2:])
    a, b, c = (run.answer(f).params for f in (both, alone, only))
    assert set(shared) == {"conv1.conv.weight", "conv1.conv.bias", "conv1.norm.weight", "conv1.norm.bias"}
    for k in both.model.trainable:
        one, two = b[k] - both.start[k], c[k] - both.start[k]
        assert torch.allclose(a[k] - both.start[k], one + two, atol=1e-6)
        assert not two.any() or k in shared  # into the rest, the other net's loss sends nothing
        assert two.any() or k != "conv1.conv.weight"


def test_teachers_stay_as_they_are_and_a_net_that_learns_comes_back() -> None:
    _, memory, (_, both, _) = requests(Colossal(HEAVY))
    out = engine("cnn").answer(both)
    assert out.peers.keys() == {"fresh"} and same(dict(both.peers["trained"].params), section(memory, "model"))
    fresh, start = out.peers["fresh"], both.peers["fresh"].params
    assert fresh.keys() == start.keys() and all(not torch.equal(v, start[k]) for k, v in fresh.items())
    assert all(torch.equal(fresh[k], out.params[m]) for k, m in both.peers["fresh"].share.items())


def test_the_client_uses_the_larger_net_and_nobody_else_sees_it() -> None:
    reply, memory, _ = requests(Colossal(SGD(0.1)))
    m, run = tiny("cnn"), engine("cnn")
    served = drive(run, Colossal().serve(order(weights(m), m.whole), client(m, task("cnn"), memory=memory)))
    assert served.model.spec == build(LARGE, KEY).spec and same(served.params, section(memory, "model"))
    assert reply.params.keys() == m.shapes.keys() and reply.cover == m.whole
