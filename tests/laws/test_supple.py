"""Torch's own layers, taught to go by their tensors: the same numbers as torch's, and pieces of them run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedquilt.cover import Axis, take
from fedquilt.model import Model
from fedquilt.supple import SUPPLE, supple

from .nets import near


class Said(nn.Module):
    """A layer, what it says as one tensor, and its input where that is another than the sample."""

    def __init__(self, layer: nn.Module, inputs: int = 1) -> None:
        super().__init__()
        self.layer, self.inputs = layer, inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Any = self.layer(*[x] * self.inputs)
        return out[0] if isinstance(out, tuple) else out


C, GATES = Axis("c"), {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}
HEADS = {
    "in_proj_weight": (Axis("c", 3, 3), None),
    "in_proj_bias": (Axis("c", 3, 3),),
    "out_proj.weight": (None, Axis("c", 3)),
}


def channelled(block: int = 1) -> dict[str, Any]:
    return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (Axis("c", block),))


def convolved(block: int) -> dict[str, Any]:
    return {"weight": (Axis("c", block), *[None] * 4), "bias": (Axis("c", block),)}


def recurrent(kind: type[nn.RNNBase]) -> dict[str, Any]:
    gates = Axis("c", repeat=GATES[kind])
    return {"weight_ih_l0": (gates, None), "weight_hh_l0": (gates, C), "bias_ih_l0": (gates,), "bias_hh_l0": (gates,)}


# Each layer with so many units, its rows of a table, the shape of its input, how many of its channels are of a unit.
LAYERS: dict[type[nn.Module], tuple[Callable[[int], nn.Module], dict[str, Any], tuple[int, ...], int]] = {
    nn.Conv1d: (lambda n: nn.Conv1d(2 * n, 4 * n, 3, groups=n), convolved(4), (3, 8, 5), 2),
    nn.Conv2d: (lambda n: nn.Conv2d(2 * n, 2 * n, 3, groups=n), convolved(2), (3, 8, 5, 4), 2),
    nn.Conv3d: (lambda n: nn.Conv3d(n, n, 2, groups=n), convolved(1), (3, 4, 3, 3, 3), 1),
    nn.ConvTranspose1d: (
        lambda n: nn.ConvTranspose1d(2 * n, n, 2, groups=n),
        convolved(1) | {"weight": (Axis("c", 2), None, None)},
        (3, 8, 5),
        2,
    ),
    nn.ConvTranspose2d: (lambda n: nn.ConvTranspose2d(n, n, 2, groups=n), convolved(1), (3, 4, 5, 4), 1),
    nn.ConvTranspose3d: (lambda n: nn.ConvTranspose3d(n, n, 2, groups=n), convolved(1), (3, 4, 3, 3, 3), 1),
    nn.BatchNorm1d: (nn.BatchNorm1d, channelled(), (3, 4), 1),
    nn.BatchNorm2d: (nn.BatchNorm2d, channelled(), (3, 4, 2, 2), 1),
    nn.BatchNorm3d: (nn.BatchNorm3d, channelled(), (3, 4, 2, 2, 2), 1),
    nn.GroupNorm: (lambda n: nn.GroupNorm(n, 2 * n), channelled(2), (3, 8, 5), 2),
    nn.LayerNorm: (nn.LayerNorm, channelled(), (3, 4, 4), 1),
    nn.RMSNorm: (nn.RMSNorm, channelled(), (3, 4, 4), 1),
    nn.InstanceNorm1d: (lambda n: nn.InstanceNorm1d(n, affine=True), channelled(), (3, 4, 5), 1),
    nn.InstanceNorm2d: (lambda n: nn.InstanceNorm2d(n, affine=True), channelled(), (3, 4, 5, 2), 1),
    nn.InstanceNorm3d: (lambda n: nn.InstanceNorm3d(n, affine=True), channelled(), (3, 4, 2, 2, 2), 1),
    nn.RNN: (lambda n: nn.RNN(3, n, batch_first=True), recurrent(nn.RNN), (3, 5, 3), 0),
    nn.GRU: (lambda n: nn.GRU(3, n, batch_first=True), recurrent(nn.GRU), (3, 5, 3), 0),
    nn.LSTM: (lambda n: nn.LSTM(3, n, batch_first=True), recurrent(nn.LSTM), (3, 5, 3), 0),
    nn.MultiheadAttention: (lambda n: nn.MultiheadAttention(12, n, batch_first=True), HEADS, (3, 5, 12), 0),
    nn.TransformerEncoderLayer: (
        lambda n: nn.TransformerEncoderLayer(12, n, 4, dropout=0.0, batch_first=True),
        {"linear1.weight": (C, None), "linear1.bias": (C,), "linear2.weight": (None, C)}
        | {f"self_attn.{k}": row for k, row in HEADS.items()},
        (3, 5, 12),
        0,
    ),
}
ATTENTIVE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def pair(kind: type[nn.Module]) -> tuple[Said, Model, Tensor]:
    """Torch's layer, a model of the same layer taught, and an input."""
    make, rows, shape, _ = LAYERS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = Said(make(4), 3 if kind is nn.MultiheadAttention else 1)
        for t in theirs.state_dict().values():
            if t.is_floating_point():
                t += torch.rand_like(t) / 4
        x = torch.randn(shape)
    ours = supple(deepcopy(theirs))
    table = {
        f"layer.{k}": row[: ours.state_dict()[f"layer.{k}"].dim()]
        for k, row in rows.items()
        if f"layer.{k}" in ours.state_dict()
    }
    return theirs, Model(ours, table, "layer"), x


def test_every_layer_that_is_taught_is_tried() -> None:
    assert LAYERS.keys() == SUPPLE.keys()
    assert all(f"Supple{kind.__name__}" == taught.__name__ for kind, taught in SUPPLE.items())


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_a_taught_layer_says_and_learns_what_torchs_does(kind: type[nn.Module], training: bool) -> None:
    theirs, m, x = pair(kind)
    a, b = theirs.train(training)(x), m.net.train(training)(x)
    assert type(m.net.layer) is SUPPLE[kind] and near(a, b, 5)
    ours = dict(m.net.named_parameters())
    for (name, p), g in zip(
        theirs.named_parameters(), torch.autograd.grad(a.pow(2).sum(), [*theirs.parameters()]), strict=True
    ):
        assert near(g, torch.autograd.grad(b.pow(2).sum(), ours[name], retain_graph=True)[0], 4), (name, p.shape)
    held = dict(m.net.named_buffers())
    assert all(torch.equal(v, held[name]) for name, v in theirs.named_buffers())


@pytest.mark.parametrize("kind", LAYERS)
def test_half_of_a_taught_layer_is_the_slimmer_layer_of_torchs(kind: type[nn.Module]) -> None:
    theirs, m, x = pair(kind)
    make, rows, _, each = LAYERS[kind]
    piece = take(m.params(), m.prefix(0.5))
    assert m.groups == {"c": 4} and any(t.shape != m.shapes[k] for k, t in piece.items())
    if kind in ATTENTIVE:  # torch's has no layer of fewer heads as wide: the whole, of which the others are not read
        slim, held = theirs, {k: v.clone() for k, v in m.params().items()}
        for k, row in rows.items():
            if row[-1] is not None and k.endswith("weight") and row[0] is None:
                held[f"layer.{k}"][:, row[-1].entries(torch.arange(2, 4), held[f"layer.{k}"].shape[1])] = 0
    else:
        slim, held = Said(make(2)), piece
    slim.load_state_dict(held)
    less = x.narrow(-1 if kind in (nn.LayerNorm, nn.RMSNorm) else 1, 0, 2 * each) if each else x
    assert near(functional_call(m.net.eval(), piece, (less,)), slim.eval()(less), 5)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d(3), (1, 3)), (nn.BatchNorm2d(3), (1, 3, 1, 1)), (nn.GroupNorm(3, 3), (1, 3))]
)
def test_a_last_batch_of_one_trains_where_torchs_layer_refuses(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer.train()(x)
    held = {k: v.clone() for k, v in layer.state_dict().items()}
    expected = layer.eval()(x) if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) else torch.zeros(shape)
    out = supple(layer).train()(x)
    assert near(out, expected, 4) and all(torch.equal(v, held[k]) for k, v in layer.state_dict().items())
    out.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())
    with pytest.raises(ValueError, match="expected"):
        supple(nn.BatchNorm2d(3)).train()(torch.randn(1, 3))
