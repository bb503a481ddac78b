"""The nets of the papers as they are named and counted, attention and norms against torch's, depth and its exits."""

from __future__ import annotations

import json
from inspect import signature
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from fedquilt.cover import Axis, Cover, take
from fedquilt.grow import general
from fedquilt.model import Model, model
from fedquilt.models import MODELS, Exit, LayerNorm, Staged, build
from fedquilt.models.transformer import Attention
from fedquilt.term import call

from ..world import FAMILIES as ROWS
from .nets import FAMILIES, KEY, NAMED, Family, learn, near, said, scrambled, size_of

EXITING = {name: f for name, f in FAMILIES.items() if f.spec.get("exits")}
exiting = pytest.mark.parametrize("family", EXITING.values(), ids=EXITING)


def counted(spec: dict[str, object]) -> Model:
    """A net that is there for its shapes alone."""
    with torch.device("meta"):
        return build(spec, KEY)


# ---- the papers' nets
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cifar_cnn", (5_228, 20_542, 45_942, 81_428, 134_902)),
        ("emnist_cnn", (12_418, 25_062, 37_994, 51_214, 64_722)),
        ("speech_cnn", (3_685, 8_135, 13_385, 19_435, 26_285)),
    ],
)
def test_the_papers_nets_have_the_papers_counts_at_each_width(name: str, counts: tuple[int, ...]) -> None:
    m = counted({"name": name})
    assert tuple(m.count(m.prefix(r)) for r in (0.2, 0.4, 0.6, 0.8, 1.0)) == counts
    assert m.count() == counts[-1]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({"name": "cifar100_cnn"}, 142_552),
        ({"name": "mnist_cnn"}, 21_840),
        ({"name": "vgg11"}, 9_231_114),
        ({"name": "vgg13"}, 9_462_180),
        ({"name": "vgg16"}, 15_132_936),
        ({"name": "vgg16", "norm": "group"}, 15_132_936),
        ({"name": "vgg16", "norm": "none"}, 15_132_936 - 2 * 4224),
        ({"name": "reddit_lstm"}, 2_845_392),
        ({"name": "resnet18"}, 11_173_962),
        ({"name": "resnet18", "input": (3, 64, 64), "classes": 200}, 11_173_962 + 190 * 513),
        ({"name": "resnet18", "input": (1, 28, 28)}, 11_173_962 - 2 * 64 * 9),
        ({"name": "transformer"}, 2 * 80 * 64 + 2 * 49_984 + 128 + 65 * 80),
        ({"name": "vit"}, 49 * 64 + 64 * 64 + 4 * 49_984 + 128 + 65 * 10),
    ],
)
def test_a_net_has_the_count_known_for_it(spec: dict[str, object], count: int) -> None:
    assert counted(spec).count() == count


def layered(channels: int, conv: tuple[int, ...], area: int, classes: int) -> int:
    """Convolutions with biases and batch norm, and a head, written out."""
    pairs = zip((channels, *conv), conv, strict=False)
    return sum((a * area + 1) * b + 2 * b for a, b in pairs) + (conv[-1] + 1) * classes


def test_the_five_layer_net_and_the_ladder_for_motion_are_as_described() -> None:
    five = (128, 64, 128, 256, 512)
    assert counted({"name": "convnet"}).count() == layered(1, five, 9, 10)
    assert counted({"name": "convnet", "input": (9, 128), "classes": 6}).count() == layered(9, five, 3, 6)
    nets = [counted({"name": "motion_cnn", "means": means, "exits": True}) for means in ("small", "adequate", "large")]
    for net, conv in zip(nets, (five[:3], five, (*five, 512, 512)), strict=True):
        heads = sum((w + 1) * 6 for w, _ in zip((128, 128, 512), net.exits, strict=False))
        assert net.count() == layered(9, conv, 3, 6) + heads
    for less, more in pairwise(nets):  # each is the beginning of the next
        body = {k: s for k, s in less.shapes.items() if k.startswith("stage")}
        assert body.items() <= more.shapes.items() and less.stages == more.stages[: len(less.stages)]


def test_every_net_has_a_row_in_the_conformance_matrix_its_own_or_that_of_what_builds_it() -> None:
    tried = {general(counted(dict(f.model)).spec)["name"] for f in ROWS.values()}
    assert {general({"name": name})["name"] for name in MODELS} == tried
    for name in ("cnn", "convnet", "resnet18"):  # with both normalisations
        norms = {s["norm"] for f in ROWS.values() if (s := general(counted(dict(f.model)).spec))["name"] == name}
        assert norms >= {"batch", "group"}, name


SIZES = {
    "cifar_cnn": (3, 32, 32),
    "cifar100_cnn": (3, 32, 32),
    "emnist_cnn": (1, 28, 28),
    "mnist_cnn": (1, 28, 28),
    "speech_cnn": (1, 32, 32),
    "vgg13": (3, 32, 32),
    "vgg16": (3, 64, 64),
}


@pytest.mark.parametrize("name", [*SIZES, "reddit_lstm"])
def test_the_papers_nets_run_at_their_size_and_in_pieces(name: str) -> None:
    assert {*SIZES, "reddit_lstm"} == NAMED
    small = {"vgg13": {"scale": 1 / 32}, "vgg16": {"scale": 1 / 32}, "reddit_lstm": {"vocabulary": 20}}
    m = build({"name": name, **small.get(name, {})}, KEY)
    x = torch.randint(20, (2, 3)) if name == "reddit_lstm" else torch.zeros(2, *SIZES[name])
    outputs = m.shapes["head.bias"]
    for r in (0.4, 1.0):
        assert functional_call(m.net, take(m.params(), m.prefix(r)), (x,)).shape[-1:] == outputs
    assert outputs == (signature(MODELS[name]).parameters["classes"].default if "lstm" not in name else 20,)


@pytest.mark.parametrize("input", [(3, 32, 32), (3, 64, 64), (1, 28, 28), (1, 1, 1)])
def test_the_residual_net_takes_images_of_any_size(input: tuple[int, ...]) -> None:
    m = build({"name": "resnet18", "input": input, "widths": (4, 4, 4, 4), "blocks": (1, 1, 1, 1)}, KEY)
    assert m.net(torch.randn(2, *input)).shape == (2, 10)


def test_pooling_before_the_relu_is_the_same_net() -> None:
    """The MNIST net of FedLPS is written with pooling first."""
    m = build({"name": "mnist_cnn"}, KEY)
    p, x = {k: v.double().requires_grad_() for k, v in m.params().items()}, torch.randn(3, 1, 28, 28).double()
    h = x
    for i in (1, 2):
        h = F.relu(F.max_pool2d(F.conv2d(h, p[f"conv{i}.conv.weight"], p[f"conv{i}.conv.bias"]), 2))
    h = F.relu(F.linear(h.flatten(1), p["dense1.linear.weight"], p["dense1.linear.bias"]))
    theirs, ours = F.linear(h, p["head.weight"], p["head.bias"]), functional_call(m.net, p, (x,))
    assert near(theirs, ours)
    some = [p["conv1.conv.weight"], p["conv2.conv.bias"]]
    for a, b in zip(*(torch.autograd.grad(y.pow(2).sum(), some) for y in (theirs, ours)), strict=True):
        assert near(a, b)


# ---- attention
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_torchs(causal: bool) -> None:
    ours, theirs = Attention(12, 3, 4, causal), nn.MultiheadAttention(12, 3, batch_first=True)
    pairs = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias", "out_proj.weight": "project.weight"}
    pairs["out_proj.bias"] = "project.bias"
    theirs.load_state_dict({k: torch.randn_like(ours.state_dict()[n]) for k, n in pairs.items()})
    p = {n: theirs.state_dict()[k] for k, n in pairs.items()}
    x = torch.randn(2, 5, 12, generator=KEY.torch())
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    assert near(functional_call(ours, p, (x,)), theirs(x, x, x, attn_mask=mask, need_weights=False)[0], 4)


def test_a_next_token_model_does_not_look_ahead() -> None:
    for name in ("transformer", "lstm"):
        m = build(FAMILIES[name].spec, KEY)
        p, (x, _) = scrambled(m, KEY), FAMILIES[name].inputs(KEY)
        other = x.clone()
        other[:, 2:] = (other[:, 2:] + 1) % 11
        a, b = said(m, p, x), said(m, p, other)
        assert torch.equal(a[:, :, :2], b[:, :, :2]) and not torch.equal(a[:, :, 2:], b[:, :, 2:])


def test_layer_norm_is_torchs() -> None:
    ours, theirs = LayerNorm(7), nn.LayerNorm(7)
    theirs.load_state_dict({k: torch.randn(7, generator=KEY.at(k).torch()) for k in ours.state_dict()})
    x = torch.randn(2, 3, 7, generator=KEY.torch())
    assert torch.equal(functional_call(ours, theirs.state_dict(), (x,)), theirs(x))


@pytest.mark.parametrize(
    ("spec", "say"),
    [
        ({"name": "convnet", "pool": (3, 1)}, "pool .3, 1. says behind which of the 5 layers, in order"),
        ({"name": "convnet", "pool": (6,)}, "of the 5 layers"),
        ({"name": "convnet", "kernel": 2}, "kernel 2 odd"),
        ({"name": "convnet", "input": (1, 3)}, "nothing is left of it behind stage2"),
        ({"name": "vgg11", "input": (1, 28, 28)}, "nothing is left of it behind stage5"),
        ({"name": "vgg11", "norm": "group", "size": 48}, "64 channels are no multiple"),
        ({"name": "vit", "patch": 5}, "an image of 32 x 32 is not cut evenly into patches of 5 x 5"),
        ({"name": "cnn", "units": {"conv9": 3}}, "no group is called .'conv9'.; the groups are"),
        ({"name": "cnn", "units": {"conv1": 0}}, "one unit at least"),
        ({"name": "cnn", "depth": 1}, "cnn has no exits"),
        ({"name": "cnn", "exits": True, "depth": 3}, "cnn has 2 stages: there is no net of the first 3"),
    ],
)
def test_a_net_of_the_zoo_that_cannot_be_built_is_explained(spec: dict[str, object], say: str) -> None:
    with pytest.raises(ValueError, match=say):
        counted(spec)


def test_a_text_longer_than_the_positions_is_refused() -> None:
    m = build(FAMILIES["transformer"].spec, KEY)
    with pytest.raises(ValueError, match="a sequence of 6 is longer than the 5 positions"):
        m.net(torch.zeros(1, 6, dtype=torch.int64))


# ---- numbers of units
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_spec_may_say_how_many_units_each_group_has(family: Family) -> None:
    m = build(family.spec, KEY)
    units = {g: n + i % 3 - 1 for i, (g, n) in enumerate(m.groups.items())}
    other = build({**family.spec, "units": units}, KEY)
    assert other.groups == units and other.axes == m.axes and other.stages == m.stages
    again = build(json.loads(json.dumps(dict(other.spec))), KEY)
    p, q = other.params(), again.params()
    assert again.spec == other.spec and all(torch.equal(v, q[k]) for k, v in p.items())
    assert other.spec["units"] == {g: n for g, n in units.items() if n != m.groups[g]}
    same = build({**family.spec, "units": m.groups}, KEY)
    assert same.spec == m.spec and all(torch.equal(v, same.params()[k]) for k, v in m.params().items())
    x, y = family.inputs(KEY)
    out, grads, _ = learn(other, scrambled(other, KEY), x, y, training=True)
    assert bool(out.isfinite().all()) and {k: tuple(g.shape) for k, g in grads.items()}.items() <= other.shapes.items()


def test_layers_of_another_size_are_drawn_as_if_they_were_built_so() -> None:
    m = build({"name": "cnn", "conv": (4, 8), "units": {"conv2": 512}}, KEY)
    w, b = m.params()["conv2.conv.weight"], m.params()["conv2.norm.weight"]
    assert w.shape == (512, 4, 3, 3) and abs(float(w.std()) - (1 / 36 / 3) ** 0.5) < 0.01 and torch.equal(b, b * 0 + 1)
    assert (m.net.conv2.conv.in_channels, m.net.conv2.conv.out_channels, m.net.head.in_features) == (4, 512, 512 * 49)


# ---- depth
def test_every_builder_has_exits_and_none_a_setting_that_any_spec_may_say() -> None:
    for name, builder in MODELS.items():
        settings = signature(builder).parameters
        assert settings["exits"].default is False and not {"units", "depth", "name"} & settings.keys()
        m = counted({"name": name, "exits": True})
        assert m.exits == tuple(f"exits.{s}" for s in m.stages[:-1]) and m.features == (*m.stages, *m.exits)
        assert all(f"{e}.bias" in m.shapes and f"{e}.bias" not in m.axes for e in m.exits)


@exiting
@pytest.mark.parametrize("training", [True, False])
def test_the_first_stages_say_what_their_exit_says_in_the_whole_net(family: Family, training: bool) -> None:
    m = build(family.spec, KEY)
    p, (x, y) = scrambled(m, KEY), family.inputs(KEY)
    out, _, held = learn(m, p, x, y, training)
    for k in range(1, len(m.stages)):
        cut = m.upto(k)
        less, _, kept = learn(cut, take(p, cut.whole), x, y, training)
        assert torch.equal(less, out[:k])
        assert all(torch.equal(v, held[name]) for name, v in kept.items())


@exiting
def test_a_net_of_the_first_stages_has_and_runs_nothing_else(family: Family) -> None:
    m = build(family.spec, KEY)
    p, (x, _) = scrambled(m, KEY), family.inputs(KEY)
    sizes, costs = [], []
    for k in range(1, len(m.stages) + 1):
        cut = m.upto(k)
        assert cut.upto(k) is cut is m.upto(k) and cut.stages == m.stages[:k]
        assert cut.shapes.items() <= m.shapes.items() and cut.axes.items() <= m.axes.items()
        assert not any(name.startswith((*m.stages[k:], *m.exits[k:])) for name in cut.shapes)
        with FlopCounterMode(display=False) as counter:
            call(cut.net, take(p, cut.whole), x)
        sizes.append(size_of(cut.shapes))
        costs.append(counter.get_total_flops())
    assert sizes == sorted({*sizes}) and costs == sorted({*costs})
    assert m.upto(len(m.stages)) is m


@exiting
def test_a_spec_of_the_first_stages_builds_them_again(family: Family) -> None:
    m = build(family.spec, KEY)
    for k in range(1, len(m.stages)):
        cut = m.upto(k)
        again = build(json.loads(json.dumps(dict(cut.spec))), KEY)
        assert again.spec == cut.spec and again.shapes == cut.shapes and again.axes == cut.axes
        assert (again.head, again.stages, again.exits) == (cut.head, cut.stages, cut.exits)
        p = m.params()
        assert all(torch.equal(v, p[name]) for name, v in again.params().items())
        assert all(torch.equal(v, p[name]) for name, v in cut.params().items())


@pytest.mark.parametrize("name", [name for name, f in EXITING.items() if "depth" not in f.spec])
def test_exits_change_nothing_of_the_net(name: str) -> None:
    family = FAMILIES[name]
    m, plain = build(family.spec, KEY), build({**family.spec, "exits": False}, KEY)
    p, q, (x, _) = m.params(), plain.params(), family.inputs(KEY)
    assert not plain.exits and all(torch.equal(v, p[k]) for k, v in q.items())
    assert p.keys() - q.keys() == {f"{e}.{k}" for e in m.exits for k in ("weight", "bias")}
    whole = scrambled(m, KEY)
    m.net.eval(), plain.net.eval()
    assert torch.equal(said(m, whole, x)[-1], said(plain, {k: whole[k] for k in q}, x)[0])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_cover_of_depth_is_the_stem_the_stages_and_their_exits(family: Family) -> None:
    m = build(family.spec, KEY)
    depths = [m.depth(k) for k in range(len(m.stages) + 1)]
    assert all(a <= b and a != b for a, b in pairwise(depths))
    for k, cover in enumerate(depths):
        stages = {s for s in m.stages if any(name.startswith(s + ".") for name in cover)}
        assert stages == {*m.stages[:k]} and f"{m.head}.bias" not in cover
        assert {e for e in m.exits if f"{e}.bias" in cover} == {*m.exits[:k]}
        rest = m.whole - m.depth(k, head=True)
        assert {name for name in rest if not name.startswith(m.stages)} <= {
            f"{e}.{n}" for e in m.exits for n in ("weight", "bias")
        }
        if m.exits and 1 <= k < len(m.stages):
            assert cover == m.upto(k).whole
    if "depth" not in family.spec:
        assert m.depth(len(m.stages), head=True) == m.whole


class Own(nn.Module):
    """A user's net: its stages lie deeper, and something stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x)))


def test_a_net_of_ones_own_has_depth_by_the_order_of_its_modules() -> None:
    m = model(Own(), {"first.weight": (Axis("a"), None)}, "last", ("body.0", "body.2"))
    names = [["first"], ["first", "body.0"], ["first", "body.0", "body.1", "body.2"]]
    for k, inside in enumerate(names):
        assert m.depth(k) == Cover.named(m.shapes, *(f"{n}.*" for n in inside))
        assert m.depth(k, head=True) == Cover.named(m.shapes, *(f"{n}.*" for n in (*inside, "last")))
    with pytest.raises(ValueError, match="custom has no exits"):
        m.upto(1)
    with pytest.raises(ValueError, match="custom has 2 stages: there is no depth 3"):
        m.depth(3)
    with pytest.raises(ValueError, match="names no stages"):
        model(Own(), {}, "last").depth(0)
    with pytest.raises(ValueError, match=r"no layer 'body.3' to be a stage or an exit: each is, one of first, body,"):
        model(Own(), {}, "last", ("body.0", "body.3"))
    with pytest.raises(ValueError, match="each stage but the last has an exit: 1 do not fit 1 stages"):
        model(Own(), {}, "last", ("body.0",), ("body.1",))


def test_a_net_of_ones_own_has_exits() -> None:
    layers = {"a": nn.Linear(3, 4), "b": nn.Linear(4, 5), "head": nn.Linear(5, 2)}
    m = model(Staged(layers, {"a": Exit(4, 2)}), {}, stages=("a", "b"), exits=("exits.a",))
    cut, x = m.upto(1), torch.randn(2, 3)
    assert {*cut.shapes} == {f"{n}.{k}" for n in ("a", "exits.a") for k in ("weight", "bias")} and cut.spec == {}
    assert torch.equal(cut.net(x), call(m.net, m.params(), x, m.features).features["exits.a"])
