"""FedLPS's local work: patterns of units that are learned with the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedquilt.cover import Params, count_units, take
from fedquilt.fit import SGD, Fit, Gradient
from fedquilt.fleet import Device
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.parts.importance import by_unit
from fedquilt.parts.learned import Importance, Learned, Masked, along, first, made, pattern_of, read
from fedquilt.parts.local import Train, section
from fedquilt.step import begin, gradient, training
from fedquilt.task import Classification
from fedquilt.types import Handle

from ..engine.tiny import HEAVY, KEY, client, drive, engine, order, recorded, same, samples, task, tiny, weights

NETS = ("mlp", "cnn", "cnn-group", "resnet", "lstm", "lstm-tied")


def learned(optim: SGD = SGD(), epochs: int = 2, batch: int = 4, **given: Any) -> Learned:  # noqa: B008
    return Learned(Train(optim, epochs, batch), **given)


def request(name: str, ratio: float, key: Any = KEY, **given: Any) -> Fit:
    """The request that it makes when scores move in every step."""
    m = tiny(name)
    c = client(m, task(name), Device(width=ratio), key=key)
    f: Fit = next(learned(probe="step", **given)(order(weights(m), m.whole), c))
    return f


def on_of(model: Model, scores: Params, counts: Params) -> dict[str, Tensor]:
    """Which units are on, by hand."""
    return {
        g: torch.zeros(len(q)).index_fill(0, q.detach().topk(int(counts["keep/" + g])).indices, 1.0)
        for g, q in scores.items()
    }


# ---- scores that move in every step
@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("name", NETS)
def test_in_every_step_so_many_units_are_on(name: str, ratio: float) -> None:
    f, m = request(name, ratio, optim=SGD(0.4)), tiny(name)
    ran = recorded(f)
    assert len(ran) == 6
    for used in ran:
        for p in read(m):
            on = by_unit(used[p.name], p).ne(0).view(p.units, p.axis.repeat, p.axis.block, -1).any(3)
            assert (on == on[:, :1, :1]).all()  # all entries of a flattened map, all channels of a norm group
            assert int(on[:, 0, 0].sum()) == count_units(ratio, p.units)


def test_which_units_are_on_changes_while_training() -> None:
    f = request("cnn-none", 0.5, optim=SGD(0.4), weight=5.0)
    assert len({tuple(used["head.weight"].ne(0).any(0).tolist()) for used in recorded(f)}) > 1


def test_an_embedding_is_masked_by_feature_columns_never_by_words() -> None:
    m = tiny("lstm")
    [p] = [p for p in made(m) if "embed" in p.name]
    assert p.dim == 1 and p.units == 4 and m.shapes[p.name] == (9, 4)


def test_the_first_of_equal_scores_are_kept() -> None:
    assert first(torch.zeros(5), torch.tensor(2)).tolist() == [True, True, False, False, False]
    assert first(torch.tensor([1.0, 3.0, 3.0, 2.0]), torch.tensor(2)).tolist() == [False, True, True, False]


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_of_a_score_is_that_of_a_smooth_surrogate(name: str) -> None:
    """Of the loss at theta * (mask + q - q0), by finite differences in float64: for units that are off too."""
    m, x, y = tiny(name), *samples(name, 8, dtype=torch.float64)
    f = request(name, 0.5, mu=0.0, weight=0.0)
    double = {k: v.double() if v.is_floating_point() else v for k, v in f.start.items()}
    scores = {g: q.double() for g, q in f.extra.items()}
    f = Fit(m, f.task, double, f.data, f.key, anchor=f.anchor, view=f.view, extra=scores, norm="batch")
    moving, held = begin(f, y.unique())
    with training(m.net, f.key):
        grads, _ = gradient(f, moving, held, x, y)
    on = on_of(m, scores, dict(f.anchor))

    def loss(moved: Params) -> float:
        used = dict(double)
        for p in read(m):
            gate = on[p.axis.group] + moved[p.axis.group] - scores[p.axis.group]
            used[p.name] = used[p.name] * along(gate, p, used[p.name])
        each, n = f.task.loss(functional_call(m.net.train(), {k: v.clone() for k, v in used.items()}, (x,)), y)
        return float(each.mean() if n is None else (each * n).sum() / n.sum())

    for g, q in scores.items():
        for j in range(len(q)):
            step = torch.zeros_like(q).index_fill(0, torch.tensor(j), 1e-5)
            slope = (loss({**scores, g: q + step}) - loss({**scores, g: q - step})) / 2e-5
            assert float(grads["+" + g][j]) == pytest.approx(slope, abs=2e-5, rel=1e-3)
        assert bool(grads["+" + g][on[g] == 0].any()), "a unit that is off can come back"


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn-none", "resnet", "lstm"])
def test_the_masked_net_is_the_small_net(name: str) -> None:
    m, (x, _) = tiny(name), samples(name, 6)
    start, keep = weights(m), {"keep/" + g: torch.tensor(count_units(0.5, n)) for g, n in m.groups.items()}
    scores = {g: torch.rand(n, generator=KEY.at("s", g).torch()) for g, n in m.groups.items()}
    used, _ = Masked.of(m)(start, scores, keep)
    small = take(start, pattern_of(m, scores, {g: int(keep["keep/" + g]) for g in m.groups}))
    with torch.no_grad():
        masked, cut = (functional_call(m.net.eval(), p, (x,)) for p in (used, small))
    assert torch.allclose(masked, cut, atol=1e-5)


def test_the_regulariser_by_hand() -> None:
    """Two units with absolute weights 3 and 0 (bias included): scores 0.5 and 1."""
    m = tiny("linear")
    assert not made(m), "an output unit is never cut"
    m = tiny("mlp")
    params = {k: torch.zeros(s) for k, s in m.shapes.items()}
    [first_layer, *_] = [p for p in made(m) if len(m.shapes[p.name]) > 1]
    g = first_layer.axis.group
    params[first_layer.name][0, :3] = torch.tensor([1.0, -1.0, 0.5])
    params[first_layer.name.replace("weight", "bias")][0] = -0.5
    scores = {g: torch.full((7,), 0.5)}
    scores[g][0] = 1.0
    f = Fit(m, task("mlp"), params, request("mlp", 1.0).data, KEY, extra=scores, terms=(Importance(2.0, made(m)),))
    x, y = samples("mlp", 4)
    moving, held = begin(f, y.unique())
    with training(m.net, KEY):
        grads, seen = gradient(f, moving, held, x, y)
    far = 1.0 - torch.sigmoid(torch.tensor(3.0))
    assert float(seen.total - seen.main) == pytest.approx(float(2 * far.square() / 7), abs=1e-6)
    assert grads["+" + g].tolist() == pytest.approx([float(4 * far / 7)] + [0.0] * 6, rel=1e-5)


@pytest.mark.parametrize("optim", [SGD(0.1), HEAVY], ids=["plain", "heavy"])
def test_it_is_the_loop_that_masks_by_hand(optim: SGD) -> None:
    f, m = request("cnn-none", 0.5, optim=optim, mu=0.3, weight=0.2), tiny("cnn-none")
    x, y = samples("cnn-none", 10, KEY.at("train"))
    p = {k: v.clone().requires_grad_() for k, v in sorted(f.start.items())}
    q = {g: v.clone().requires_grad_() for g, v in sorted(f.extra.items())}
    hand = torch.optim.SGD([*p.values(), *q.values()], optim.lr, optim.momentum, weight_decay=optim.weight_decay)
    for rows in f.batches(10):
        on, used = on_of(m, q, dict(f.anchor)), dict(p)
        sub = m.cover({g: t.nonzero().flatten() for g, t in on.items()})
        masks = {k: s.dense().float() for k, s in sub.spans.items() if k in p}
        for place in read(m):
            k, g = place.name, place.axis.group
            used[k] = used[k] * along(on[g] + (q[g] - q[g].detach()), place, p[k])
        loss = F.cross_entropy(functional_call(m.net, used, (x[rows],)), y[rows])
        loss = loss + 0.3 * sum((p[k] - f.start[k]).pow(2).sum() for k in p)
        for g in q:
            size = sum(
                by_unit(p[place.name].detach().abs(), place).sum(1) for place in made(m) if place.axis.group == g
            )
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


# ---- scores that move once an epoch
@pytest.mark.parametrize("name", NETS)
def test_an_epoch_runs_on_the_small_model_alone(name: str) -> None:
    """One dense gradient, whose cost is counted, then an epoch on tensors that are as small as the ratio says."""
    m, run = tiny(name), engine(name)
    o, c = order(weights(m), m.whole), client(m, task(name), Device(width=0.5))
    drive(run, learned(epochs=2)(o, c))
    kinds = [type(a) for a in run.asked]
    assert kinds == [Gradient, Fit] * 2
    fits = [a for a in run.asked if isinstance(a, Fit)]
    small = m.prefix(0.5).pieces
    assert all({k: tuple(v.shape) for k, v in f.start.items()} == dict(small) for f in fits)
    assert all(
        {k: tuple(v.shape) for k, v in a.params.items()} == m.shapes for a in run.asked if isinstance(a, Gradient)
    )


def test_a_pattern_that_is_not_learned_costs_no_gradient() -> None:
    m = tiny("cnn")
    for pattern in ("random", "ordered", "magnitude"):
        run = engine("cnn")
        reply, memory = drive(
            run, learned(pattern=pattern)(order(weights(m), m.whole), client(m, task("cnn"), Device(width=0.5)))
        )
        assert [type(a) for a in run.asked] == [Fit, Fit] and not section(memory, "score")
        assert (reply.cover == m.prefix(0.5)) == (pattern == "ordered")


def test_scores_follow_the_gradient_at_the_masked_model_by_hand() -> None:
    m, run = tiny("mlp"), engine("mlp")
    start, c = weights(m), client(m, task("mlp"), Device(width=0.5))
    part = learned(SGD(0.1), epochs=1, mu=0.0, weight=0.0)
    _, memory = drive(run, part(order(start, m.whole), c))
    [probe] = [a for a in run.asked if isinstance(a, Gradient)]
    slope = engine("mlp").answer(probe).params
    begun = part.scores(c, start)
    for g, q in section(memory, "score").items():
        along_it = sum(by_unit(slope[p.name] * start[p.name], p).sum(1) for p in read(m) if p.axis.group == g)
        assert torch.allclose(q, begun[g] - 3 * 0.1 * along_it, atol=1e-6), (
            "ten samples in batches of four: three steps"
        )


def test_it_speaks_for_the_units_that_are_on_and_keeps_its_scores() -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"), Device(width=0.5))
    for probe in ("epoch", "step"):
        reply, memory = drive(run, learned(probe=probe)(o, c))
        assert reply.cover == pattern_of(
            m, section(memory, "score"), {g: count_units(0.5, n) for g, n in m.groups.items()}
        )
        own = section(memory, "own")
        assert all(torch.equal(reply.params[k], own[k]) for k in reply.cover if k in m.trainable)
        later = client(m, task("cnn"), Device(width=0.5), memory=memory)
        assert same(learned(probe=probe).scores(later, weights(m)), section(memory, "score"))
        assert same(drive(run, learned().serve(o, later)).params, own)


@pytest.mark.parametrize("probe", ["epoch", "step"])
def test_a_learned_pattern_finds_informative_units_that_magnitude_misses(probe: Any) -> None:
    """Two of eight units see the signal, through small weights; six see noise, through large ones."""
    m = build({"name": "mlp", "inputs": 8, "hidden": (8,), "classes": 2}, KEY)
    start = dict(m.params())
    start["dense1.linear.weight"] = torch.diag(torch.tensor([0.8, 0.8, *[3.0] * 6]))
    start["dense1.linear.bias"] = torch.zeros(8)
    start["head.weight"] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(1, 4)
    g = KEY.at("planted").torch()
    y = torch.randint(2, (40,), generator=g)
    x = torch.randn(40, 8, generator=g).abs()
    x[:, 0], x[:, 1] = (y == 0) * 3.0, (y == 1) * 3.0
    held: Any = {Handle(0, s): (x, y) for s in ("train", "val", "test")}
    c = client(m, Classification(2), Device(width=0.25), counts={"train": 40})
    seen = {}
    for pattern in ("learned", "magnitude"):
        part = learned(SGD(0.1), epochs=40, batch=40, pattern=pattern, probe=probe, mu=0.0, weight=0.0)
        reply, _ = drive(engine("mlp", others=held), part(order(start, m.whole), c))
        [seen[pattern]] = (set(units.tolist()) for units in m.units(reply.cover).values())
    assert not seen["magnitude"] & {0, 1}
    assert seen["learned"] == {0, 1} if probe == "step" else seen["learned"] & {0, 1}, "one of the two says it all"
    [begun] = learned().scores(c, start).values()
    assert not set(begun.topk(2).indices.tolist()) & {0, 1}, "at first neither of them was on"


@pytest.mark.parametrize("probe", ["epoch", "step"])
def test_with_all_units_on_and_no_pulls_it_is_plain_training(probe: Any) -> None:
    m, run = tiny("cnn"), engine("cnn")
    o, c = order(weights(m), m.whole), client(m, task("cnn"), Device(width=1.0))
    reply, _ = drive(run, learned(SGD(0.1), 1, probe=probe, mu=0.0, weight=0.0)(o, c))
    plain, _ = drive(run, Train(SGD(0.1), 1, 4)(o, c))
    assert all(torch.allclose(reply.params[k], plain.params[k], atol=1e-6) for k in m.shapes)


def test_the_ratio_is_never_above_what_the_device_carries() -> None:
    m, run = tiny("cnn"), engine("cnn")
    o = order(weights(m), m.whole)
    for width, asked, wanted in ((0.5, 0.9, 0.5), (0.9, 0.5, 0.5), (0.5, None, 0.5)):
        object.__setattr__(o, "scalars", {**o.scalars, **({} if asked is None else {"ratio": asked})})
        reply, _ = drive(run, learned(pattern="ordered")(o, client(m, task("cnn"), Device(width=width))))
        assert reply.cover == m.prefix(wanted)
