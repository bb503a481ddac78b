"""PruneFL (Jiang et al., TNNLS 2022): squared gradients, those of pruned coordinates too, added up while training."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedquilt.cover import Cover, Params, put, take
from fedquilt.fit import SGD, Fit, Fitted, Watch
from fedquilt.model import Model
from fedquilt.parts.local import received, remember, section
from fedquilt.types import Client, Grant, Order, Part, Reply, Served

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, samples, task, tiny, weights


# ---- the piece
@dataclass(frozen=True)
class Powers(Watch):
    """The sum over the steps of the gradient (``power`` 1) or of its square (2), of these tensors."""

    names: tuple[str, ...]
    power: int = 1

    def start(self, fit: Fit) -> Params:
        return {k: torch.zeros_like(fit.start[k]) for k in self.names}

    def add(self, so_far: Params, seen: Params, grads: Params) -> Params:
        return {k: v + grads[k] ** self.power for k, v in so_far.items()}


def prunable(model: Model) -> tuple[str, ...]:
    """Weights of convolutions and of dense layers, the head's excepted."""
    return tuple(k for k in sorted(model.trainable) if len(model.shapes[k]) > 1 and not k.startswith(model.head))


@dataclass(frozen=True)
class Prune(Part):
    """Trains under the mask that the order's cover is, and every ``every`` rounds tells what it has added up.

    ``sums``: the square of the summed gradient, as the authors' code has it; else the sum of squares.
    """

    optim: SGD = SGD()
    epochs: int = 1
    batch: int = 4
    every: int = 2
    sums: bool = True

    def grant(self, cover: Cover, model: Model) -> Grant:
        extras = {"importance/" + k: (torch.float32, model.shapes[k]) for k in prunable(model)}
        return Grant(cover, extras=extras)

    def __call__(self, order: Order, client: Client) -> Any:
        m, names = client.model, prunable(client.model)
        zeros = {k: torch.zeros_like(v) for k, v in m.params().items()}
        start = put(zeros, order.cover, order.params)  # what is pruned is 0, and stays so
        out: Fitted = yield Fit(
            m,
            client.task,
            start,
            client.train,
            client.key.at("train"),
            self.optim.at(order.round),
            self.epochs,
            batch=self.batch,
            norm=order.norm,
            free=order.cover,
            watch=(Powers(names, 1 if self.sums else 2),),
        )
        n = client.counts["train"]
        before = section(client.memory, "importance")
        told = {k: before.get(k, 0) + n * (v**2 if self.sums else v) for k, v in out.watched.items()}
        now = (order.round + 1) % self.every == 0
        extra = {"importance/" + k: v for k, v in told.items()} if now else {}
        piece = take(out.params, order.cover)
        reply = Reply(order.client, order.round, piece, order.cover, float(n), {"loss": out.loss}, extra)
        return reply, remember(importance={} if now else told)

    def serve(self, order: Order, client: Client) -> Any:
        return Served(client.model, received(order, client)[0], order.norm)
        yield


# ---- its invariants
def mask(m: Model) -> Cover:
    """A third of the prunable weights, none at all of one tensor, and everything else."""
    names = prunable(m)
    rows = {
        k: torch.rand(s, generator=KEY.at("mask", k).torch()) < (0.3 if k in names else 2) for k, s in m.shapes.items()
    }
    return Cover.masks(rows | {names[0]: torch.zeros(m.shapes[names[0]]).bool()})


def rounds(name: str, local: Prune, n: int) -> tuple[list[Reply], list[Any]]:
    """So many rounds of one client, the server sending back what it got."""
    m, run = tiny(name), engine(name)
    cover = mask(m)
    o, c = order(take(weights(m), cover), cover), client(m, task(name))
    replies, memories = [], []
    for r in range(n):
        o, c = replace(o, round=r), replace(c, key=KEY.at(r))
        reply, memory = drive(run, local(o, c))
        replies, memories = [*replies, reply], [*memories, memory]
        o, c = replace(o, params=reply.params), replace(c, memory=memory)
    return replies, memories


@pytest.mark.parametrize("sums", [True, False], ids=["square of sums", "sum of squares"])
@pytest.mark.parametrize("name", ["mlp", "cnn-none"])
def test_the_importance_is_that_of_a_dense_backward_pass(name: str, sums: bool) -> None:
    m = tiny(name)
    cover, names = mask(m), prunable(m)
    local = Prune(HEAVY, epochs=2, sums=sums)
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
    reply, _ = drive(run, Prune(HEAVY)(order(take(weights(m), cover), cover), client(m, task("cnn"))))
    f = run.asked[0]
    assert isinstance(f, Fit) and reply.cover == cover
    out = run.answer(f).params
    for k in m.trainable:
        off = ~cover[k].dense() if k in cover else torch.ones(m.shapes[k]).bool()
        assert not f.start[k][off].any() and not out[k][off].any()


def test_what_it_tells_is_what_it_was_granted() -> None:
    m = tiny("mlp")
    replies, _ = rounds("mlp", Prune(), 2)
    grant = Prune().grant(mask(m), m)
    assert {k: (v.dtype, tuple(v.shape)) for k, v in replies[1].extra.items()} == grant.extras
