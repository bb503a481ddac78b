"""FjORD's local work: a width for every local step, each with its statistics; self-distillation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedquilt.cover import count_units, take
from fedquilt.fit import SGD, Fit
from fedquilt.fleet import Device
from fedquilt.norm import held, plain, travelling
from fedquilt.parts.local import Train
from fedquilt.parts.nested import Nested
from fedquilt.types import Client, Order, Reply

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, same, samples, task, tiny, weights

# ---- its invariants
WIDTHS = (0.4, 0.6, 1.0)


def sent(tier: float, widths: tuple[float, ...] = WIDTHS, name: str = "cnn") -> tuple[Order, Client]:
    m = tiny(name)
    server = held(weights(m), m, "per-width", widths)
    cover = travelling(m.prefix(tier), m, "per-width", [w for w in widths if w <= tier])
    return order(take(server, cover), cover, "per-width"), client(m, task(name), Device(width=tier))


SLOW = SGD()


def fjord(
    widths: tuple[float, ...], optim: SGD = SLOW, epochs: int = 1, batch: int = 4, distil: float | None = None
) -> Nested:
    return Nested(Train(optim, epochs, batch), widths, distil)


def work(local: Nested, o: Order, c: Client) -> tuple[Reply, Fit]:
    run = engine("cnn")
    reply, _ = drive(run, local(o, c))
    return reply, run.asked[0]  # type: ignore[return-value]


def test_every_width_up_to_the_tier_is_drawn_and_no_other() -> None:
    for tier, allowed in ((0.4, 1), (0.6, 2), (1.0, 3)):
        o, c = sent(tier)
        s = fjord(WIDTHS).slices(c.model, o.params, tier, KEY, own=True)
        drawn = torch.tensor([s.at(i) for i in range(600)]).bincount(minlength=3)
        assert len(s.covers) == allowed and not drawn[allowed:].any()
        assert all(abs(int(n) - 600 / allowed) < 60 for n in drawn[:allowed])
        assert all(a.only(c.model.trainable.__contains__) <= b for a, b in zip(s.covers, s.covers[1:], strict=False))
        # a slice of the piece is that slice of the whole
        whole = weights(c.model)
        small = c.model.prefix(0.4).only(c.model.trainable.__contains__)
        assert same(take(o.params, s.covers[0].only(small.__contains__)), take(whole, small))


@pytest.mark.parametrize("tier", [0.6, 1.0])
def test_outside_the_drawn_slice_nothing_moves_and_only_its_own_statistics_do(tier: float) -> None:
    o, c = sent(tier)
    for step in range(4):
        # one step a request: its key decides the draw, and momentum, decay and clipping are on
        c = replace(c, key=KEY.at(step))
        reply, f = work(fjord(WIDTHS, HEAVY, batch=16), o, c)
        assert f.slices is not None
        cover = f.slices.covers[f.slices.at(0)]
        for k, v in reply.params.items():
            inside = cover[k].dense() if k in cover else torch.zeros(v.shape, dtype=torch.bool)
            assert torch.equal(v[~inside], o.params[k][~inside])
            assert not inside.any() or "bias" in k or not torch.equal(v[inside], o.params[k][inside])
        o = replace(o, params=reply.params)


def test_it_is_the_loop_that_slices_by_hand() -> None:
    o, c = sent(1.0)
    reply, f = work(fjord(WIDTHS, SGD(0.1, momentum=0.9, weight_decay=0.01), epochs=3), o, c)
    p, (x, y) = {k: v.clone() for k, v in o.params.items()}, samples("cnn", 10, KEY.at("train"))
    speed = {k: torch.zeros_like(p[k]) for k in c.model.trainable}
    for step, rows in enumerate(f.batches(10)):
        w = WIDTHS[f.slices.at(step)]  # type: ignore[union-attr]
        n = {"conv1": (a := count_units(w, 4)), "conv2": (b := count_units(w, 5)), "dense1": (d := count_units(w, 6))}
        at = {"conv1.conv.weight": (slice(a),), "conv2.conv.weight": (slice(b), slice(a))}
        at |= {"dense1.linear.weight": (slice(d), slice(4 * b)), "head.weight": (slice(None), slice(d))}
        at |= {k: at.get(k, (slice(n.get(k.split(".")[0])),)) for k in c.model.shapes}
        leaves = {k: p[k][at[k]].clone().requires_grad_() for k in c.model.trainable}
        stats = {k: p[f"{k}@{w:g}"][at[k]] for k in c.model.statistics}
        loss = F.cross_entropy(functional_call(c.model.net.train(), leaves | stats, (x[rows],)), y[rows])
        for k, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            fast = speed[k][at[k]].mul_(0.9).add_(g + 0.01 * leaves[k].detach())
            p[k][at[k]] -= 0.1 * fast
    assert all(torch.allclose(v, p[k], atol=1e-5) for k, v in reply.params.items())


def test_one_width_is_plain_training() -> None:
    o, c = sent(1.0, (1.0,))
    reply, _ = work(fjord((1.0,), HEAVY, epochs=2), o, c)
    p = plain(o.params, 1.0)
    other, _ = drive(engine("cnn"), Train(HEAVY, 2, 4)(order(p, c.model.whole), c))
    assert same(plain(reply.params, 1.0), other.params) and reply.metrics == other.metrics


def test_the_widest_teaches_the_drawn_one_and_learns_by_itself() -> None:
    o, c = sent(1.0)
    x, y = samples("cnn", 10, KEY.at("train"))
    for key in (KEY.at(i) for i in range(8)):
        reply, f = work(fjord(WIDTHS, SGD(0.1), batch=16, distil=0.7), o, replace(c, key=key))
        at = f.slices.at(0)  # type: ignore[union-attr]
        w, leaves = WIDTHS[at], {k: o.params[k].clone().requires_grad_() for k in c.model.trainable}
        stats = {k: {v: o.params[f"{k}@{v:g}"].clone() for v in (w, 1.0)} for k in c.model.statistics}
        wide = functional_call(c.model.net.train(), leaves | {k: s[1.0] for k, s in stats.items()}, (x,))
        small = c.model.prefix(w)
        tensors = take(leaves | {k: s[w] for k, s in stats.items()}, small)
        out = functional_call(c.model.net, tensors, (x,)) if w < 1 else wide
        teacher = F.softmax(wide.detach(), 1)
        loss = 0.3 * F.cross_entropy(out, y) + F.cross_entropy(wide, y)
        loss = loss + 0.7 * F.kl_div(out.log_softmax(1), teacher, reduction="batchmean")
        grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        assert all(torch.allclose(reply.params[k], o.params[k] - 0.1 * g, atol=1e-5) for k, g in grads.items())
        for k in c.model.statistics:  # those of both widths have moved, by one step each
            moved = [v for v in WIDTHS if not torch.equal(reply.params[f"{k}@{v:g}"], o.params[f"{k}@{v:g}"])]
            assert moved == sorted({w, 1.0})
            assert torch.allclose(reply.params[f"{k}@1"], stats[k][1.0])


def test_the_widest_has_nothing_to_learn_from_itself() -> None:
    o, c = sent(0.4)  # the only width of this tier is its widest
    a, _ = work(fjord(WIDTHS, SGD(0.1), distil=1.0), o, c)
    b, _ = work(fjord(WIDTHS, SGD(0.1)), o, c)
    assert all(torch.allclose(a.params[k], v, atol=1e-6) for k, v in b.params.items())
