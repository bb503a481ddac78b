"""Frozen weights whose gradients are not computed: the same update, fewer operations, and only where it is worth it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedquilt.engine import trim
from fedquilt.fit import Fit
from fedquilt.meter import Usage
from fedquilt.models import build
from fedquilt.task import Classification

from .tiny import CNN, HEAVY, KEY, close, engine, every_other, fit, scattered, tiny, weights

NETS = ["mlp", "cnn", "cnn-group", "resnet", "lstm", "lstm-tied"]


def both(f: Fit, name: str, monkeypatch: pytest.MonkeyPatch, layout: str = "contiguous") -> list[Any]:
    """What a training gives and costs: with whole gradients, and with those of every block."""
    out = []
    for worth in (10**9, 0):
        monkeypatch.setattr(trim, "WORTH", worth)
        usage: list[Usage] = []
        out.append((engine(name, layout=layout).answer(f, usage), usage[0], dict(trim.blocks(f))))
    return out


@pytest.mark.parametrize("name", NETS)
def test_it_is_the_same_update_with_fewer_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = fit(name, optim=HEAVY, epochs=2, free=every_other(name), norm="shared")
    (whole, dear, none), (thin, cheap, some) = both(f, name, monkeypatch)
    assert not none and len(some) >= 2
    assert close(whole.params, thin.params, 5) and thin.loss == pytest.approx(whole.loss, rel=1e-5)
    assert not close(f.start, thin.params, 3)
    for k, free in f.moves.items():
        assert torch.equal(thin.params[k][~free], f.start[k][~free])
    assert cheap.backward < dear.backward and cheap.flops - cheap.backward == dear.flops - dear.backward


def test_channels_last_too(monkeypatch: pytest.MonkeyPatch) -> None:
    f = fit("resnet", epochs=2, free=every_other("resnet"))
    (whole, *_), (thin, *_) = both(f, "resnet", monkeypatch, "channels_last")
    assert close(whole.params, thin.params, 5)


def test_the_operations_are_those_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of 6 x 7 of which 3 x 4 may move, on 4 samples: 2 (42 - 12) operations a sample less."""
    f = fit("mlp", steps=1, free=every_other("mlp"))
    name = next(k for k, s in tiny("mlp").shapes.items() if s == (6, 7))
    block = trim.Block(torch.arange(0, 6, 2), torch.arange(0, 7, 2))
    costs: list[Usage] = []
    for found in ({}, {name: block}):
        monkeypatch.setattr("fedquilt.engine.serial.blocks", lambda f, found=found: found)
        engine("mlp").answer(f, costs)
    dear, cheap = costs
    assert dear.flops - cheap.flops == dear.products - cheap.products == 2 * (42 - 12) * 4


def test_a_layer_is_trimmed_where_it_loses_enough_products() -> None:
    """Of 64 x 64 x 3 x 3, with a fifth free: 9 (4096 - 144) multiplications for 24 copied channels, above 1000."""
    model = build({**CNN, "conv": (64, 64), "dense": ()}, KEY)
    f = Fit(model, Classification(5), weights(model), fit("cnn").data, KEY, free=model.prefix(0.2))
    assert set(trim.blocks(f)) == {"conv2.conv.weight"}  # the first layer has too few inputs, the head too few outputs
    assert not trim.blocks(replace(f, free=model.prefix(0.9)))  # nearly all has to be gathered
    assert not trim.blocks(replace(f, free=None)) and not trim.blocks(fit("cnn", free=every_other("cnn")))


def test_no_block_is_made_of_scattered_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "WORTH", 0)
    assert not trim.blocks(fit("mlp", free=scattered("mlp")))


def test_a_layer_that_takes_one_sample_without_a_batch_is_left_as_it_is() -> None:
    weight, x = torch.randn(6, 7, requires_grad=True), torch.randn(7)
    found = {"w": trim.Block(torch.arange(0, 6, 2), torch.arange(0, 7, 2))}
    with trim.trimmed(found, {"w": weight.detach()}):
        (grad,) = torch.autograd.grad(torch.nn.functional.linear(x, weight).sum(), weight)
    assert torch.equal(grad, x.expand(6, 7))
