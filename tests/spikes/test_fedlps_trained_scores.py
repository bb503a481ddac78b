"""FedLPS (Jia et al.): the score of each unit is trained with the weights, through a step function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedquilt.cover import Axis, Cover, Params, count_units, take
from fedquilt.fit import SGD, Fit, Fitted, Given, Step, Term, View
from fedquilt.fleet import Device
from fedquilt.model import Model
from fedquilt.parts.local import Train, received, remember, section
from fedquilt.parts.terms import Proximal
from fedquilt.step import begin, gradient, training
from fedquilt.types import Client, Grant, Order, Part, Reply, Served

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, recorded, same, samples, task, tiny, weights


# ---- the piece
def kept(score: Tensor, count: Tensor) -> Tensor:
    """Whether each unit is among the ``count`` best (the first of equals): a comparison of ranks, not of values."""
    return score.argsort(descending=True, stable=True).argsort() < count


def spread(unit: Tensor, axis: Axis) -> Tensor:
    """What is said of units, for each entry of an axis."""
    return unit.view(1, -1, 1).expand(axis.repeat, -1, axis.block).reshape(-1)


@dataclass(frozen=True)
class Units(View):
    """Weights under a 0/1 mask of units, which are rows; backward the step function is the identity.

    How many units a client keeps of each group is a constant of the client: ``keep/<group>`` of the anchor.
    """

    rows: tuple[tuple[str, Axis], ...]

    @staticmethod
    def of(model: Model) -> Units:
        """All tensors whose first axis is units, statistics excepted."""
        return Units(tuple((k, t[0]) for k, t in sorted(model.axes.items()) if t[0] and k in model.trainable))

    def given(self, fit: Fit, labels: Tensor) -> Given:
        return {k: v for k, v in fit.anchor.items() if k.startswith("keep/")}

    def __call__(self, params: Params, extra: Params, given: Given) -> tuple[Params, Params]:
        used, moves = dict(params), {}
        for k, axis in self.rows:
            q = extra[axis.group]
            on = kept(q, given["keep/" + axis.group])
            through = on.to(q.dtype) + (q - q.detach())  # exactly 0 or 1: (1 + q) - q would be rounded
            shape = (-1,) + (1,) * (params[k].dim() - 1)
            used[k] = params[k] * spread(through, axis).view(shape)
            moves[k] = spread(on, axis).view(shape).expand_as(params[k])
        return used, moves


@dataclass(frozen=True)
class Importance(Term):
    """A pull of each score towards the sigmoid of the sum of the absolute weights of its unit, meaned over units."""

    weight: float
    rows: tuple[tuple[str, Axis], ...]

    def __call__(self, s: Step) -> Tensor:
        total = torch.zeros((), dtype=s.out.logits.dtype)
        for group, q in s.extra.items():
            size = torch.zeros_like(q)
            for k, axis in self.rows:
                if axis.group == group:
                    rows = s.params[k].abs().flatten(1).sum(1) if s.params[k].dim() > 1 else s.params[k].abs()
                    size = size + rows.view(axis.repeat, -1, axis.block).sum((0, 2))
            total = total + (q - size.sigmoid()).pow(2).mean()
        return self.weight * total


@dataclass(frozen=True)
class Lps(Part):
    """Trains weights and scores together; speaks for the units that are on at the end."""

    optim: SGD = SGD()
    steps: int = 5
    batch: int = 4
    mu: float = 1.0
    weight: float = 1.0

    def grant(self, cover: Cover, model: Model) -> Grant:
        return Grant(cover, frozenset({"same", "whole", "block"}))

    def __call__(self, order: Order, client: Client) -> Any:
        m, units = client.model, Units.of(client.model)
        start, _ = received(order, client)
        scores = section(client.memory, "score") or {
            g: torch.rand(n, generator=client.key.at("score", g).torch()) for g, n in m.groups.items()
        }
        keep = {"keep/" + g: torch.tensor(count_units(client.device.width, n)) for g, n in m.groups.items()}
        terms: tuple[Term, ...] = (Proximal(2 * self.mu), Importance(self.weight, units.rows))
        out: Fitted = yield Fit(
            m,
            client.task,
            start,
            client.train,
            client.key.at("train"),
            self.optim.at(order.round),
            steps=self.steps,
            batch=self.batch,
            norm=order.norm,
            terms=terms,
            anchor=start | keep,
            view=units,
            extra=scores,
        )
        on = {g: kept(q, keep["keep/" + g]).nonzero().flatten() for g, q in out.extra.items()}
        cover = Cover.units(m.shapes, {k: (t[0], *(None,) * (len(t) - 1)) for k, t in m.axes.items()}, on) & order.cover
        reply = Reply(order.client, order.round, take(out.params, cover), cover, 1.0, {"loss": out.loss})
        used, _ = units(out.params, out.extra, keep)
        return reply, remember(score=dict(out.extra), model=used)

    def serve(self, order: Order, client: Client) -> Any:
        return Served(client.model, section(client.memory, "model") or received(order, client)[0], order.norm)
        yield


# ---- its invariants
def request(name: str, ratio: float, key: Any = KEY, **settings: Any) -> Fit:
    """The request that it makes."""
    m = tiny(name)
    c = client(m, task(name), Device(width=ratio), key=key)
    f: Fit = next(Lps(**settings)(order(weights(m), m.whole), c))
    return f


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-group", "resnet", "lstm"])
def test_in_every_step_so_many_units_are_on_and_only_they_move(name: str, ratio: float) -> None:
    f, m = request(name, ratio, optim=SGD(0.4)), tiny(name)
    rows = dict(f.view.rows)  # type: ignore[union-attr]
    ran = recorded(f)
    assert len(ran) == 5
    for used in ran:
        for k, axis in rows.items():
            on = used[k].flatten(1).ne(0).any(1) if used[k].dim() > 1 else used[k].ne(0)
            n = m.groups[axis.group]
            on = on.view(axis.repeat, n, axis.block)
            assert (on == on[:1, :, :1]).all()  # all gates, all channels of a norm group
            assert int(on[0, :, 0].sum()) == count_units(ratio, n)


def test_which_units_are_on_changes_while_training() -> None:
    f = request("cnn-none", 0.5, optim=SGD(0.4), weight=5.0)
    assert len({tuple(used["conv2.conv.bias"].ne(0).tolist()) for used in recorded(f)}) > 1


def test_the_first_of_equal_scores_are_kept() -> None:
    assert kept(torch.zeros(5), torch.tensor(2)).tolist() == [True, True, False, False, False]
    assert kept(torch.tensor([1.0, 3.0, 3.0, 2.0]), torch.tensor(2)).tolist() == [False, True, True, False]


@pytest.mark.parametrize("name", ["mlp", "cnn-none", "resnet", "lstm"])
def test_the_gradient_of_a_score_is_the_sum_over_its_unit(name: str) -> None:
    # dL/dq = sum over the unit of dL/d(w m) w: of units that are off as well
    f, m = request(name, 0.5, mu=0.0, weight=0.0), tiny(name)
    x, y = samples(name, 8)
    moving, held = begin(f, y.unique())
    with training(m.net, f.key):
        grads, seen = gradient(f, moving, held, x, y)
    used, _ = f.view(f.start, f.extra, held.given[-1])  # type: ignore[misc]
    leaves = {k: used[k].detach().clone().requires_grad_() for k in m.trainable}
    stats = {k: v.clone() for k, v in f.start.items() if k not in leaves}
    each, n = f.task.loss(functional_call(m.net.train(), leaves | stats, (x,)), y)
    loss = each.mean() if n is None else (each * n).sum() / n.sum()
    wanted = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    assert torch.allclose(loss, seen.main, atol=1e-6)
    for g, n in m.groups.items():
        total = torch.zeros(n)
        for k, axis in f.view.rows:  # type: ignore[union-attr]
            if axis.group == g:
                each = (wanted[k] * f.start[k]).flatten(1).sum(1) if f.start[k].dim() > 1 else wanted[k] * f.start[k]
                total += each.view(axis.repeat, n, axis.block).sum((0, 2))
        assert torch.allclose(grads["+" + g], total, atol=1e-5)
    assert any(bool(grads["+" + g].any()) for g in m.groups)


@pytest.mark.parametrize("optim", [SGD(0.1), HEAVY], ids=["plain", "heavy"])
def test_it_is_the_loop_that_masks_by_hand(optim: SGD) -> None:
    f, m = request("cnn-none", 0.5, optim=optim, steps=7, mu=0.3, weight=0.2), tiny("cnn-none")
    x, y = samples("cnn-none", 10, KEY.at("train"))
    p = {k: v.clone().requires_grad_() for k, v in sorted(f.start.items())}
    q = {g: v.clone().requires_grad_() for g, v in sorted(f.extra.items())}
    hand = torch.optim.SGD([*p.values(), *q.values()], optim.lr, optim.momentum, weight_decay=optim.weight_decay)
    for rows in f.batches(10):
        masks, used = {}, dict(p)
        for k, axis in f.view.rows:  # type: ignore[union-attr]
            best = q[axis.group].detach().topk(int(f.anchor["keep/" + axis.group])).indices
            masks[k] = torch.zeros(len(p[k])).index_fill(0, best, 1).view((-1,) + (1,) * (p[k].dim() - 1))
            # d/dq of (m + q - q.detach()) w is w, and its value is m w
            used[k] = p[k] * (masks[k] + (q[axis.group] - q[axis.group].detach()).view(masks[k].shape))
        loss = F.cross_entropy(functional_call(m.net, used, (x[rows],)), y[rows])
        loss = loss + 0.3 * sum((p[k] - f.start[k]).pow(2).sum() for k in p)
        for g in q:
            size = p[f"{g}.conv.weight"].abs().sum((1, 2, 3)) + p[f"{g}.conv.bias"].abs()
            loss = loss + 0.2 * (q[g] - size.sigmoid()).pow(2).mean()
        hand.zero_grad()
        loss.backward()
        before = {k: (v.detach().clone(), _speed(hand, v)) for k, v in p.items()}
        for k, mask in masks.items():
            p[k].grad *= mask  # type: ignore[operator]
        if optim.clip is not None:
            torch.nn.utils.clip_grad_norm_([*p.values(), *q.values()], optim.clip)
        hand.step()
        with torch.no_grad():
            for k, mask in masks.items():  # what is off keeps its value, and its momentum
                p[k].copy_(torch.where(mask > 0, p[k], before[k][0]))
                if optim.momentum:
                    speed = hand.state[p[k]]["momentum_buffer"]
                    speed.copy_(torch.where(mask > 0, speed, before[k][1]))
    out = engine("cnn-none").answer(f)
    assert all(torch.allclose(out.params[k], v.detach(), atol=1e-5) for k, v in p.items())
    assert all(torch.allclose(out.extra[g], v.detach(), atol=1e-5) for g, v in q.items())


def _speed(hand: torch.optim.Optimizer, v: Tensor) -> Tensor:
    return hand.state[v].get("momentum_buffer", torch.zeros_like(v)).clone()


def test_it_speaks_for_the_units_that_are_on_and_keeps_its_scores() -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"), Device(width=0.5))
    reply, memory = drive(run, Lps()(o, c))
    assert reply.cover.pieces["conv1.conv.weight"] == (2, 2, 3, 3) and reply.cover.pieces["head.weight"] == (5, 6)
    assert section(memory, "score").keys() == m.groups.keys()
    mine = section(memory, "model")
    assert all(torch.equal(reply.params[k], reply.cover[k].take(mine[k])) for k in reply.cover if k in m.trainable)
    assert not any(mine[k][~reply.cover[k].dense()].any() for k, _ in Units.of(m).rows)
    again = drive(run, Lps(steps=0)(o, client(m, task("cnn"), Device(width=0.5), memory=memory)))
    assert same(section(again[1], "score"), section(memory, "score"))


def test_with_all_units_on_and_no_pulls_it_is_plain_training() -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"), Device(width=1.0))
    reply, _ = drive(run, Lps(SGD(0.1), steps=3, mu=0.0, weight=0.0)(o, c))
    plain, _ = drive(run, Train(SGD(0.1), 1, 4)(o, c))
    assert all(torch.allclose(reply.params[k], plain.params[k], atol=1e-6) for k in m.shapes)
