"""Mishra and Gupta (TOSN 2023), a participant with means to spare: a net larger than the server's, and back again."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.cover import Params
from fedquilt.fit import SGD, Fit
from fedquilt.model import Model
from fedquilt.parts.local import Train, section
from fedquilt.parts.resized import Grown, Lessons
from fedquilt.types import Memory, Reply

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, same, samples, task, tiny, weights


# ---- its invariants
def colossal(optim: SGD) -> Grown:
    return Grown(Train(optim, epochs=3, batch=4), Lessons(until=2 / 3))


def requests(local: Grown) -> tuple[Reply, Memory, list[Fit]]:
    m, run = tiny("cnn"), engine("cnn")
    reply, memory = drive(run, local(order(weights(m), m.whole), client(m, task("cnn"))))
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
    reply, memory, (grow, both, rest) = requests(colossal(optim))
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
    held = section(memory, "large")
    assert all(torch.allclose(v, held[k], atol=1e-4) for k, v in net.state_dict().items())
    return net


def test_gradients_add_up_on_the_tensors_that_are_shared() -> None:
    _, _, (_, both, _) = requests(colossal(SGD(0.1)))
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
    _, memory, (_, both, _) = requests(colossal(HEAVY))
    out = engine("cnn").answer(both)
    assert out.peers.keys() == {"fresh"} and same(dict(both.peers["trained"].params), section(memory, "large"))
    fresh, start = out.peers["fresh"], both.peers["fresh"].params
    assert fresh.keys() == start.keys() and all(not torch.equal(v, start[k]) for k, v in fresh.items())
    assert all(torch.equal(fresh[k], out.params[m]) for k, m in both.peers["fresh"].share.items())


def test_the_client_uses_the_larger_net_and_nobody_else_sees_it() -> None:
    reply, memory, _ = requests(colossal(SGD(0.1)))
    m, run = tiny("cnn"), engine("cnn")
    served = drive(run, colossal(SGD(0.1)).serve(order(weights(m), m.whole), client(m, task("cnn"), memory=memory)))
    assert served.model.groups == {"conv1": 4, "conv2": 7, "dense1": 9, "dense2": 9, "dense3": 9}
    assert same(served.params, section(memory, "large"))
    assert reply.params.keys() == m.shapes.keys() and reply.cover == m.whole
