"""Another sub-model at each step: its shapes run, its coordinates move, and nothing else does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fedquilt.cover import Params, put, take
from fedquilt.fit import SGD, Given, Slices, Step, Term, View

from .tiny import HEAVY, KEY, PLAIN, close, engine, every_other, fit, recorded, samples, tiny, weights


def slices(name: str, ratios: tuple[float, ...] = (0.4, 0.7, 1.0), **more: Any) -> Slices:
    m = tiny(name)
    return Slices(tuple(m.prefix(r) for r in ratios), KEY.at("slices"), **more)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "lstm"])
def test_the_shapes_of_a_slice_are_those_inside_the_step(name: str) -> None:
    f = fit(name, optim=HEAVY, epochs=3, slices=slices(name))
    assert f.slices is not None
    drawn = [f.slices.at(i) for i in range(9)]
    ran = recorded(f)
    assert len(ran) == 9 and set(drawn) == {0, 1, 2}
    for used, i in zip(ran, drawn, strict=True):
        cut = f.slices.covers[i].only(f.model.trainable.__contains__)
        assert {k: tuple(v.shape) for k, v in used.items()} == cut.pieces
        assert cut.numel < f.model.count() or i == 2


@pytest.mark.parametrize("optim", [PLAIN, HEAVY], ids=["plain", "heavy"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_outside_the_drawn_slice_nothing_moves(name: str, optim: SGD) -> None:
    start, run = weights(tiny(name)), engine(name)
    for step in range(1, 6):
        f = fit(name, optim=optim, steps=step, slices=slices(name))
        after = run.answer(f).params
        cover = f.slices.covers[f.slices.at(step - 1)]
        for k, v in after.items():
            inside = cover[k].dense()
            assert torch.equal(v[~inside], start[k][~inside])
            # a hidden unit that says nothing has no gradient
            assert k != "head.bias" or not torch.equal(v[inside], start[k][inside])
        start = after


def test_a_slice_trains_as_the_slimmer_net_does() -> None:
    for name in ("mlp", "cnn", "resnet"):
        half = tiny(name).prefix(0.5)
        f = fit(name, optim=HEAVY, slices=slices(name, (0.5,)))
        slim = fit(name, optim=HEAVY, start=take(f.start, half))
        out, piece = engine(name).answer(f), engine(name).answer(slim)
        assert close(out.params, put(f.start, half, piece.params), 5) and out.loss == pytest.approx(piece.loss)


def test_a_slice_of_frozen_coordinates_does_not_move_them() -> None:
    f = fit("cnn", optim=HEAVY, slices=slices("cnn"), free=every_other("cnn"))
    out = engine("cnn").answer(f).params
    assert all(torch.equal(out[k][~f.free[k].dense()], f.start[k][~f.free[k].dense()]) for k in f.model.trainable)


@dataclass(frozen=True)
class FirstRow(View):
    """Of the first layer only the first unit may move."""

    def __call__(self, params: Params, extra: Params, given: Given) -> tuple[Params, Params]:
        rows = {k: torch.arange(len(params[k])) < 1 for k in ("dense1.linear.weight", "dense1.linear.bias")}
        return params, {k: m.view(-1, *[1] * (params[k].dim() - 1)).expand_as(params[k]) for k, m in rows.items()}


def test_what_a_view_holds_back_a_slice_does_not_set_free() -> None:
    f = fit("mlp", optim=HEAVY, slices=slices("mlp", (0.7,)), view=FirstRow())
    out = engine("mlp").answer(f).params
    for k in ("dense1.linear.weight", "dense1.linear.bias"):
        assert torch.equal(out[k][1:], f.start[k][1:]) and not torch.equal(out[k][:1], f.start[k][:1])


@dataclass(frozen=True)
class Elsewhere(Term):
    """What the net says on other parameters."""

    def __call__(self, s: Step) -> Tensor:
        return s.mean(s.run({k: 0.5 * v for k, v in s.used.items()}).logits.pow(2).sum(1))


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_a_term_may_run_the_net_on_other_parameters_and_moves_no_statistics(ratio: float) -> None:
    start = take(weights(tiny("cnn")), tiny("cnn").prefix(ratio))
    f = fit("cnn", start=start, optim=SGD(0.1), steps=1, terms=(Elsewhere(),))
    out = engine("cnn").answer(f).params
    plain = engine("cnn").answer(replace(f, terms=())).params
    x, _ = samples("cnn", 10, KEY.at("train"))
    leaves = {k: start[k].clone().requires_grad_() for k in f.model.trainable}
    tensors = {k: 0.5 * leaves[k] if k in leaves else v.clone() for k, v in start.items()}
    said = functional_call(f.model.net.train(), tensors, (x[next(f.batches(10))],))
    grads = torch.autograd.grad(said.pow(2).sum(1).mean(), list(leaves.values()))
    for k, g in zip(leaves, grads, strict=True):
        assert torch.allclose(out[k], plain[k] - 0.1 * g, atol=1e-5)
    assert all(torch.equal(out[k], plain[k]) for k in f.model.statistics)
    # and inside a slice: the slice's own statistics, of its shapes
    whole = weights(tiny("cnn"))
    cut = fit("cnn", start=whole, optim=SGD(0.1), steps=1, terms=(Elsewhere(),), slices=slices("cnn", (ratio,)))
    piece = take(engine("cnn").answer(cut).params, tiny("cnn").prefix(ratio))
    assert close(piece, out, 5)


def test_a_slice_that_leaves_a_tensor_out_is_refused() -> None:
    part = tiny("mlp").prefix(0.5).only(lambda k: not k.startswith("head"))
    with pytest.raises(ValueError, match=r"2 tensors without a value: head\.bias, head\.weight"):
        fit("mlp", slices=Slices((part,), KEY))
