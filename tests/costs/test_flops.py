"""Floating point operations: hand counts of each kind of layer, and FedLPS's own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.cover import put, take
from fedquilt.fit import Fit
from fedquilt.key import Key
from fedquilt.meter import Flops, cost, count, fedlps_flops, probe, unknown
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.models.lstm import LSTM
from fedquilt.models.transformer import Attention
from fedquilt.step import begin, gradient
from fedquilt.types import Handle

from ..world import FAMILIES, play, small, world

B = 4


def said(layer: Callable[[Tensor], Tensor], x: Tensor, *also: Tensor) -> tuple[float, float]:
    """Forward, and backward from a gradient of ones to the input and the layer's parameters."""
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    weights = [*layer.parameters()] if isinstance(layer, nn.Module) else [*also]
    leaves = [t for t in (x, *weights) if t.requires_grad]
    out: list[Tensor] = []
    forward = count(lambda: out.append(layer(x))).total
    ones = torch.ones_like(out[0])
    return forward, count(lambda: torch.autograd.grad(out[0], leaves, ones)).total


# ---- by hand
def test_linear() -> None:
    products = 2 * B * 7 * 5
    assert said(nn.Linear(7, 5), torch.randn(B, 7)) == (products + B * 5, 2 * products + B * 5)
    assert said(nn.Linear(7, 5, bias=False), torch.randn(B, 7)) == (products, 2 * products)
    assert said(nn.Linear(7, 5), torch.randn(B, 3, 7)) == (3 * products + 3 * B * 5, 6 * products + 3 * B * 5)


@pytest.mark.parametrize(
    ("layer", "shape", "area", "multiplications"),
    [
        (nn.Conv2d(3, 6, 3, padding=1), (3, 8, 8), 64, 3 * 9),
        (nn.Conv2d(3, 6, 3, stride=2, bias=False), (3, 9, 9), 16, 3 * 9),
        (nn.Conv2d(4, 6, (3, 1), groups=2), (4, 8, 8), 48, 2 * 3),
        (nn.Conv1d(3, 6, 5), (3, 12), 8, 3 * 5),
    ],
)
def test_convolution(layer: nn.Module, shape: Any, area: int, multiplications: int) -> None:
    entries = B * 6 * area
    bias = 0 if layer.bias is None else entries
    products = 2 * entries * multiplications
    assert said(layer, torch.randn(B, *shape)) == (products + bias, 2 * products + bias)


@pytest.mark.parametrize(("groups", "each"), [(1, 6 * 9), (2, 3 * 9)])
def test_transposed_convolution(groups: int, each: int) -> None:
    """Every entry of the input meets so many weights."""
    layer = nn.ConvTranspose2d(4, 6, 3, stride=2, groups=groups)
    products, bias = 2 * B * 4 * 5 * 5 * each, B * 6 * 11 * 11
    assert said(layer, torch.randn(B, 4, 5, 5)) == (products + bias, 2 * products + bias)


@pytest.mark.parametrize(
    ("layer", "eight", "nine"),
    [
        (nn.BatchNorm2d(6), 8, 9),
        (nn.BatchNorm2d(6).eval(), 4, 6),
        (nn.BatchNorm2d(6, affine=False), 6, 9),
        (nn.GroupNorm(3, 6), 8, 9),
        (nn.LayerNorm([6, 5, 5]), 8, 9),
    ],
)
def test_normalisation(layer: nn.Module, eight: int, nine: int) -> None:
    """Mean 1, variance 3, normalise 2, scale and shift 2; back: again 2, products 2, sum 1, the input's 4 (1)."""
    entries = B * 6 * 5 * 5
    assert said(layer, torch.randn(B, 6, 5, 5)) == (eight * entries, nine * entries)


def test_embedding() -> None:
    """Looking up is free; a gradient is added to the row of each token."""
    assert said(nn.Embedding(20, 6), torch.randint(20, (B, 7))) == (0, B * 7 * 6)


def test_our_lstm() -> None:
    T, D, H = 5, 6, 3
    inputs, states = 2 * B * T * D * 4 * H, 2 * B * H * 4 * H * T
    biases, sums = 2 * B * T * 4 * H, B * T * 4 * H  # of both products; of their results
    gates = B * T * H * (3 + 2 + 3 + 1)  # sigmoids, tanhs, products, a sum
    forward, backward = said(LSTM(D, H), torch.randn(B, T, D))
    assert forward == inputs + states + biases + sums + gates
    assert 2 * (inputs + states) < backward < 2 * (inputs + states) + 3 * (biases + sums + gates)
    opaque = count(lambda: nn.LSTM(D, H, batch_first=True)(torch.randn(B, T, D))[0].sum()).forward
    assert opaque == forward + B * T * H, "torch's own is counted as ours"


def test_attention() -> None:
    T, D, heads, each = 7, 10, 3, 4
    wide, scores = heads * each, B * heads * T * T
    qkv = 2 * B * T * D * 3 * wide + B * T * 3 * wide
    inside = 2 * scores * each + scores + 5 * scores + 2 * scores * each  # scale, then softmax
    project = 2 * B * T * wide * D + B * T * D
    assert said(Attention(D, heads, each, causal=False), torch.randn(B, T, D))[0] == qkv + inside + project
    q = torch.randn(B, heads, T, each)
    assert count(lambda: F.scaled_dot_product_attention(q, q, q)) == Flops(inside, 0, 4 * scores * each)
    fused = said(lambda q: F.scaled_dot_product_attention(q, q, q), q)[1]
    assert fused == 10 * scores * each + 12 * scores + 2 * q.numel(), "five products; q is used three times"


def test_activations_pooling_and_losses() -> None:
    entries = B * 6 * 8 * 8
    x = torch.randn(B, 6, 8, 8)
    for f in (torch.relu, torch.tanh, torch.sigmoid, F.gelu):
        assert said(f, x) == (entries, entries)
    assert said(nn.MaxPool2d(2), x) == (entries, entries // 4), "a comparison an entry"
    assert said(nn.MaxPool2d(3, 1), x)[0] == 9 * B * 6 * 6 * 6
    assert said(nn.AvgPool2d(2), x) == (entries, entries)
    assert said(nn.AdaptiveAvgPool2d(1), x) == (entries, entries)
    assert said(nn.Flatten(), x) == (0, 0) == said(lambda t: t.transpose(1, 2).reshape(B, -1), x)
    y = torch.zeros(B, dtype=torch.long)
    assert count(lambda: F.cross_entropy(torch.randn(B, 10), y, reduction="none")).total == 5 * B * 10 + B
    assert count(lambda: torch.arange(9) + 1) == Flops(), "integers are free"
    rows, more = torch.zeros(3, 5), torch.randn(4, 5)
    assert count(lambda: rows.index_add(0, torch.tensor([0, 0, 2, 1]), more)).total == 4 * 5


def test_a_whole_net() -> None:
    """FedSPU's EMNIST net, forward, layer by layer."""
    model = build({"name": "emnist_cnn"}, Key(0))
    x = torch.randn(B, 1, 28, 28)

    def block(channels: int, side: int) -> int:  # products, bias, norm, ReLU, pooling, of an entry
        return 20 * side * side * (2 * channels * 9 + 1 + 8 + 1 + 1)

    expected = B * (block(1, 28) + block(20, 14) + 2 * 980 * 62 + 62)
    model.net.train()
    assert count(lambda: model.net(x)).forward == expected


# ---- a line through two small batches
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_any_size_costs_what_the_line_says(family: str) -> None:
    kind = FAMILIES[family]
    model = build(kind.model, Key(0))
    data = kind.data(9, Key(1))
    fit = Fit(model, kind.task, model.params(), Handle(0, "train"), Key(2))
    moving, held = begin(fit, data.y.unique())

    def work(x: Tensor, y: Tensor) -> object:
        return gradient(fit, moving, held, x, y)

    line = cost(work, data.x[:1], data.y[:1])
    for n in (4, 9):
        real = count(lambda n=n: work(data.x[:n], data.y[:n]))  # type: ignore[misc]
        used = line.at(n)
        assert (used.flops, used.backward, used.products) == (real.total, real.backward, real.products)
        assert used.products < used.flops and 0 < used.backward < used.flops
    assert not unknown(lambda: work(data.x, data.y)), "operations of which no rule speaks"


@pytest.mark.parametrize("family", ["cnn", "lstm"])
@pytest.mark.parametrize("method", METHODS)
def test_no_method_executes_what_no_rule_speaks_of(method: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def spy(work: Callable[[], object]) -> Flops:
        seen.append(unknown(work))
        return count(work)

    monkeypatch.setattr(probe, "count", spy)
    _, told = play(world(small(METHODS[method]), family, clients=2), 1)
    assert seen and not set().union(*seen)
    for c in told[0].clients:
        assert 0 < c["products"] < c["flops"] and 0 < c["backward"] < c["flops"] and c["peak"] > 0
        assert 0 < c["ideal"] <= c["flops"]


def test_a_term_that_looks_at_the_parameters_costs_its_share_once_a_step() -> None:
    model = build({"name": "mlp", "inputs": 64, "hidden": (8,), "classes": 4}, Key(0))
    x = torch.randn(5, 64)

    def work(x: Tensor, y: Tensor) -> object:
        out = model.net(x).sum()
        return out + sum(p.pow(2).sum() for p in model.net.parameters())

    line = cost(work, x, x)
    assert line.forward.step == 2 * model.count() + 5, "a square and a sum an entry, and five sums"
    assert line.forward.sample == 2 * 64 * 8 + 8 + 8 + 2 * 8 * 4 + 4 + 4


# ---- FedLPS
TABLE = [  # images an epoch, and the dense total of Table I in 1e12: 5 epochs, 10 clients, 100 rounds
    ("mnist_cnn", (1, 28, 28), 192, 2.8, 2.788128),
    ("vgg11", (3, 32, 32), 180, 825.4, 825.364712),
    ("vgg13", (3, 32, 32), 720, 4934.3, 4934.262139),
    ("vgg16", (3, 64, 64), 720, 27081.0, 27080.974512),
]


@pytest.mark.parametrize(("name", "input", "images", "printed", "exact"), TABLE)
def test_the_dense_totals_of_fedlps(name: str, input: Any, images: int, printed: float, exact: float) -> None:
    total = fedlps_flops(build({"name": name}, Key(0)), input, samples=images * 5 * 10 * 100) / 1e12
    assert round(total, 1) == printed and total == pytest.approx(exact, abs=1e-6)


def test_fedlps_counts_what_is_not_zero() -> None:
    model = build({"name": "mnist_cnn"}, Key(0))
    assert fedlps_flops(model, (1, 28, 28)) == 3 * 968_100
    half = {k: v.clone() for k, v in model.params().items()}
    half["dense1.linear.weight"][25:] = 0
    assert fedlps_flops(model, (1, 28, 28), half) == 3 * (968_100 - 2 * 25 * 320)
    slim = model.prefix(0.5)
    piece = put({k: torch.zeros_like(v) for k, v in model.params().items()}, slim, take(model.params(), slim))
    outside = fedlps_flops(model, (1, 28, 28), cover=slim)
    assert outside == fedlps_flops(model, (1, 28, 28), piece)
    # a slimmer net is charged for its own bias and area only
    assert fedlps_flops(model, (1, 28, 28), take(model.params(), slim)) < outside < 3 * 968_100 / 2


def test_fedlps_charges_a_recurrent_layer_once() -> None:
    def lstm(length: int) -> float:
        return fedlps_flops(build({"name": "lstm"}, Key(0)), (length,))

    assert lstm(9) == lstm(80) > 0
    own = Model(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), {}, head="1")
    assert fedlps_flops(own, (4,), samples=10) == 3 * 10 * (2 * 12 + 3)
