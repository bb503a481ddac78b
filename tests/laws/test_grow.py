"""Growth and shrinkage: what is grown says what it said, what is shrunk is the piece, and specs build both again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedquilt.cover import Axis, Params, count_units, take
from fedquilt.grow import climb, deepen, ladder, places, shorten, shrink, widen
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.term import call
from fedquilt.trace import axes_of, batch

from .nets import FAMILIES, KEY, Family, learn, near, said, scrambled, size_of
from .test_axes import NETS, found

every = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
CLOSE = {torch.float64: 10, torch.float32: 5}


def untied(m: Model) -> list[str]:
    """The groups that can be widened: not those of a table that decodes too."""
    return [g for g in m.groups if not (g == "embed" and m.spec.get("tied"))]


def larger(m: Model, g: str, i: int) -> int:
    """A layer norm bears a multiple alone."""
    return m.groups[g] * 2 if g == "stream" else m.groups[g] + 1 + 3 * i % 5


def lawful(m: Model, p: Params) -> None:
    """Is this a model with parameters of its shapes, which its spec builds again?"""
    assert {k: tuple(v.shape) for k, v in p.items()} == dict(m.shapes)
    again = build(json.loads(json.dumps(dict(m.spec))), KEY)
    assert (again.spec, again.shapes, again.axes) == (m.spec, m.shapes, m.axes)
    assert again.groups == m.groups and (again.stages, again.exits) == (m.stages, m.exits)
    assert m.count() == sum(p[k].numel() for k in m.trainable)


def starts(family: Family) -> tuple[Model, Params, Tensor, Tensor]:
    m = build(family.spec, KEY)
    return m, scrambled(m, KEY), *family.inputs(KEY)


def same(a: tuple[Model, Params], b: tuple[Model, Params], x: Tensor, training: bool = False) -> bool:
    """Do two nets say the same, in float64 and in float32?"""
    verdicts = []
    for kind, digits in CLOSE.items():
        out = []
        for m, p in (a, b):
            m.net.train(training)
            tensors = {k: v.to(kind, copy=True) for k, v in p.items()}
            out.append(said(m, tensors, x.to(kind) if x.is_floating_point() else x))
        scale = float(out[0].abs().max())
        verdicts.append(near(out[0] / scale, out[1] / scale, digits))
    return all(verdicts)


# ---- width
@every
@pytest.mark.parametrize("shared", [True, False])
def test_widening_a_group_preserves_the_function(family: Family, shared: bool) -> None:
    m, p, x, _ = starts(family)
    for i, g in enumerate(untied(m)):
        wide, q = widen(m, p, {g: larger(m, g, i)}, KEY, shared)
        lawful(wide, q)
        assert wide.groups == {**m.groups, g: larger(m, g, i)}
        assert size_of(wide.shapes) > size_of(m.shapes)
        for training in (False, True):
            assert same((m, p), (wide, q), x, training), g


@every
def test_widening_all_groups_at_once_preserves_the_function(family: Family) -> None:
    m, p, x, _ = starts(family)
    wide, q = widen(m, p, {g: larger(m, g, i) for i, g in enumerate(untied(m))}, KEY)
    lawful(wide, q)
    assert same((m, p), (wide, q), x)


@every
def test_what_was_widened_without_sharing_shrinks_back_to_the_bit(family: Family) -> None:
    m, p, _, _ = starts(family)
    wide, q = widen(m, p, {g: larger(m, g, i) for i, g in enumerate(untied(m))}, KEY, shared=False)
    back, r = shrink(wide, q, {g: torch.arange(m.groups[g]) for g in untied(m)}, KEY)
    lawful(back, r)
    assert back.shapes == m.shapes and back.spec == m.spec
    assert r.keys() == p.keys() and all(torch.equal(v, r[k]) for k, v in p.items())
    initial = build(m.spec, KEY).params()
    assert all(torch.equal(v, initial[k]) for k, v in back.params().items())


@every
def test_shrinking_takes_these_units(family: Family) -> None:
    m, p, x, y = starts(family)
    units = {
        g: KEY.at(g).permutation(n)[: max(1, n - 1 - i % 2)].sort().values for i, (g, n) in enumerate(m.groups.items())
    }
    slim, q = shrink(m, p, units, KEY)
    lawful(slim, q)
    assert slim.groups == {g: len(u) for g, u in units.items()}
    out, grads, _ = learn(slim, q, x, y, training=True)
    expected = learn(m, take(p, m.cover(units)), x, y, training=True)
    assert torch.equal(out, expected[0]) and all(torch.equal(g, expected[1][k]) for k, g in grads.items())


def test_copies_that_share_learn_different_things() -> None:
    m, p, x, y = starts(FAMILIES["mlp"])
    for shared in (True, False):
        wide, q = widen(m, p, {"dense1": 10}, KEY, shared)
        w, g = q["dense1.linear.weight"], learn(wide, q, x, y, training=True)[1]["dense1.linear.weight"]
        assert torch.equal(w[:5], w[5:]) and not near(g[:5], g[5:], 3)
        parallel = torch.cosine_similarity(g[:5], g[5:])
        assert bool((parallel.abs() < 1 - 1e-6).any()) or not shared


def test_widening_is_repeatable_and_by_key() -> None:
    m, p, _, _ = starts(FAMILIES["resnet-batch"])
    a, b, c = (widen(m, p, {"stage1": 7, "stage2.0": 15}, key)[1] for key in (KEY, KEY, KEY.at("else")))
    assert all(torch.equal(v, b[k]) for k, v in a.items()) and any(not torch.equal(v, c[k]) for k, v in a.items())


@pytest.mark.parametrize(
    ("name", "units", "say"),
    [
        ("mlp", {"dense1": 4}, "dense1 has 5 units: widening does not make them 4"),
        ("mlp", {"dense9": 4}, "no group is called .'dense9'."),
        ("lstm-tied", {"embed": 10}, "one table is looked up and decodes"),
        ("transformer", {"stream": 8}, "only a multiple of 7 keeps its mean, not 8"),
    ],
)
def test_what_cannot_be_widened_is_explained(name: str, units: dict[str, int], say: str) -> None:
    m, p, _, _ = starts(FAMILIES[name])
    with pytest.raises(ValueError, match=say):
        widen(m, p, units, KEY)


def test_a_net_of_ones_own_is_widened_and_shrunk_without_a_spec() -> None:
    m, p, x, _ = starts(FAMILIES["vit"])
    own = replace(m, spec={})
    wide, q = widen(own, p, {"block1.heads": 5, "stream": 14}, KEY)
    assert wide.spec == {} and wide.groups == {**m.groups, "block1.heads": 5, "stream": 14}
    assert same((own, p), (wide, q), x)
    back, r = shrink(wide, q, {"block1.heads": torch.tensor([0, 2])}, KEY)
    assert back.groups["block1.heads"] == 2 and {k: tuple(v.shape) for k, v in r.items()} == dict(back.shapes)
    with pytest.raises(ValueError, match="a net of one's own has no spec"):
        deepen(own, p, "block2", KEY)


class Bare(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(3))


def test_a_layer_that_cannot_draw_other_sizes_is_named() -> None:
    m = Model(torch.nn.Sequential(Bare()), {"0.a": (Axis("a"),)})
    with pytest.raises(ValueError, match=r"0 \(Bare\) has no reset_parameters"):
        m.sized({"a": 4}, KEY)


def test_a_tensor_that_layers_share_stays_shared() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    net[1].weight = net[0].weight
    a = Axis("a")
    m = Model(net, {"0.weight": (a, a), "0.bias": (a,), "1.bias": (a,)})
    assert "1.weight" not in m.shapes and m.count() == 24
    x = torch.randn(2, 4)
    assert torch.equal(call(m.net, m.params(), x).logits, net(x))
    assert call(m.net, take(m.params(), m.prefix(0.5)), x[:, :2]).logits.shape == (2, 2)
    with pytest.raises(ValueError, match=r"names 1\.weight, which is another name of 0\.weight"):
        Model(net, {"1.weight": (a, a)})
    other = m.sized({"a": 6}, KEY).net
    assert other[0].weight is other[1].weight and other[0].weight.shape == (6, 6)
    assert other[0].bias is not other[1].bias and net[0].weight.shape == (4, 4)


# ---- depth
DEEP = {
    "cnn-batch": ("dense2",),
    "cnn-tanh": ("dense2",),
    "convnet-2d": ("stage1", "stage2"),
    "convnet-1d": ("stage1", "stage2", "stage3"),
    "convnet-group": ("stage1", "stage2"),
    "resnet-batch": ("stage1", "stage2"),
    "resnet-group": ("stage1", "stage2"),
    "transformer": ("block2",),
    "vit": ("block2",),
    "mlp": ("dense2",),
    "vgg": ("stage1", "stage2", "stage3", "stage4", "stage5"),
    "vgg-group": ("stage1", "stage2", "stage3", "stage4", "stage5"),
    "motion": ("stage1", "stage2"),
    "motion-group": ("stage1", "stage2"),
    "cnn-group": ("dense1",),
    "cnn-none": (),
    "cnn-strided": (),
    "cnn-cut": (),
    "lstm": (),
    "lstm-tied": (),
}
REFUSED = ("cnn-tanh", "convnet-group", "vgg-group", "motion-group")  # of which no layer more changes nothing
GROWING = [(n, w) for n, found in DEEP.items() for w in found if n not in REFUSED]


def test_it_is_known_where_a_net_takes_a_layer_more() -> None:
    assert {n: places(build(f.spec, KEY)) for n, f in FAMILIES.items()} == DEEP


@pytest.mark.parametrize(("name", "where"), GROWING)
def test_deepening_preserves_the_function(name: str, where: str) -> None:
    m, p, x, y = starts(FAMILIES[name])
    for _ in range(2):
        deep, q = deepen(m, p, where, KEY)
        lawful(deep, q)
        assert size_of(deep.shapes) > size_of(m.shapes) and all(q[k] is v for k, v in p.items())
        m.net.eval(), deep.net.eval()
        outs = [said(n, v, x) for n, v in ((m, p), (deep, q))]
        assert near(outs[0][-1] / outs[0][-1].abs().max(), outs[1][-1] / outs[0][-1].abs().max(), 10)
        _, grads, _ = learn(deep, q, x, y, training=False)
        fresh = {k: g for k, g in grads.items() if k not in p and not k.startswith("exits")}
        assert fresh and any(bool(g.any()) for g in fresh.values())  # the new layer can learn
        m, p, where = deep, q, where if where.startswith("stage") else places(deep)[0]


@pytest.mark.parametrize("name", ["resnet-batch", "resnet-group", "vit", "transformer"])
def test_a_residual_block_more_changes_nothing_in_training_either(name: str) -> None:
    m, p, x, _ = starts(FAMILIES[name])
    for where in DEEP[name]:
        deep, q = deepen(m, p, where, KEY)
        for kind, digits in CLOSE.items():
            z = x.to(kind) if x.is_floating_point() else x
            a, b = (said(n, {k: t.to(kind, copy=True) for k, t in v.items()}, z)[-1] for n, v in ((m, p), (deep, q)))
            assert near(a / a.abs().max(), b / a.abs().max(), digits)


def test_a_residual_block_without_norms_begins_with_its_last_convolution_at_zero() -> None:
    m = build({**FAMILIES["resnet-batch"].spec, "norm": "none"}, KEY)
    p, x = scrambled(m, KEY), FAMILIES["resnet-batch"].inputs(KEY)[0]
    deep, q = deepen(m, p, "stage2", KEY)
    lawful(deep, q)
    assert not q["stage2.2.conv2.weight"].any() and q["stage2.2.conv1.weight"].any()
    assert same((m, p), (deep, q), x)


def test_a_paper_s_net_is_deepened_by_the_name_of_what_builds_it() -> None:
    m = build({"name": "cifar_cnn", "classes": 3}, KEY)
    deep, _ = deepen(m, m.params(), "dense2", KEY)
    assert deep.name == "cnn" and deep.count() == m.count() + 84 * 84


def test_a_layer_is_added_behind_units_of_any_number() -> None:
    m, p, x, _ = starts(FAMILIES["convnet-1d"])
    wide, q = widen(m, p, {"stage1.conv1": 9}, KEY)
    deep, r = deepen(wide, q, "stage1", KEY)
    lawful(deep, r)
    assert deep.groups["stage1.conv2"] == 9 and same((m, p), (deep, r), x)
    narrow, s = shrink(deep, r, {"stage1.conv2": torch.tensor([1, 4])}, KEY)
    lawful(narrow, s)


@pytest.mark.parametrize(
    ("name", "where", "say"),
    [
        ("convnet-group", "stage1", r"stage1.conv3 would hold GroupNorm, with which no layer there changes nothing"),
        ("cnn-tanh", "dense2", r"dense3 would hold Tanh"),
        ("lstm", "lstm2", r"lstm takes no layer behind 'lstm2'; places: none"),
        ("mlp", "dense1", r"mlp takes no layer behind 'dense1'; places: dense2"),
    ],
)
def test_what_cannot_be_deepened_is_explained(name: str, where: str, say: str) -> None:
    m, p, _, _ = starts(FAMILIES[name])
    with pytest.raises(ValueError, match=say):
        deepen(m, p, where, KEY)


def test_a_cut_net_is_shortened_but_not_deepened() -> None:
    m, p, x, _ = starts(FAMILIES["resnet-batch"])
    short, q = shorten(m, p, 1)
    lawful(short, q)
    assert near(said(short, q, x)[0], said(m, p, x)[0])
    with pytest.raises(ValueError, match="resnet18 is cut to 1 stages: deepen the whole net"):
        deepen(short, q, "stage1", KEY)


# ---- both
SCALES = (1.25, 0.5, (1.0, -1), (1.5, 2), 1.0, (1.0, 1))


@pytest.mark.parametrize("name", ["convnet-1d", "resnet-batch", "motion"])
def test_a_ladder_is_specs_in_order_of_size_and_a_net_climbs_it(name: str) -> None:
    spec = {**FAMILIES[name].spec, "exits": True}
    m, x = build(spec, KEY), FAMILIES[name].inputs(KEY)[0]
    p = scrambled(m, KEY)
    specs = ladder(spec, SCALES)
    counts = [build(json.loads(json.dumps(s)), KEY).count() for s in specs]
    assert counts == sorted(counts) and len({*counts}) == len(SCALES)
    for scale in SCALES:
        rung, q = climb(m, p, scale, KEY)
        lawful(rung, q)
        assert dict(rung.spec) in specs
        width, more = scale if isinstance(scale, tuple) else (scale, 0)
        if width >= 1 and more >= 0:
            m.net.eval(), rung.net.eval()
            a, b = said(m, p, x)[-1], said(rung, q, x)[-1]
            assert near(a / a.abs().max(), b / a.abs().max())
        if not more:
            assert rung.groups == {g: count_units(width, n) for g, n in m.groups.items()}


def test_a_ladder_of_a_net_that_grows_no_deeper_is_one_of_widths() -> None:
    spec = {"name": "emnist_cnn", "classes": 5}
    assert [dict(s.get("units", {})) for s in ladder(spec, (1.0, 0.5, 1.25))] == [
        {"conv1": 10, "conv2": 10},
        {},
        {"conv1": 25, "conv2": 25},
    ]
    with pytest.raises(ValueError, match="emnist_cnn takes no more layers"):
        ladder(spec, ((1.0, 1),))


# ---- nets of others
SUMS = {("two-tower", "left.2"), ("shared", "encode")}  # a dot product over units; a weight that is read transposed


@pytest.mark.parametrize("name", NETS)
def test_a_foreign_net_is_widened_and_says_what_it_said(name: str) -> None:
    case, m = NETS[name], found(name).model
    p, x = scrambled(m, KEY), batch(case.shape, case.dtype, m.net)
    x = x.double() if x.is_floating_point() else x
    m.net.eval()
    before = said(m, p, x)
    for group, n in m.groups.items():
        for shared in (True, False):
            wide, q = widen(m, p, {group: n + 2}, KEY, shared)
            assert wide.groups[group] == n + 2 and {k: tuple(v.shape) for k, v in q.items()} == dict(wide.shapes)
            wide.net.eval()
            assert near(said(wide, q, x), before) != ((name, group) in SUMS), (group, shared)


class Scale(torch.nn.Module):
    """A number for each channel, written as people do."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.empty(1, channels, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.gamma)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def test_what_scales_channels_is_copied_and_not_divided() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        Scale(4),
        torch.nn.ConvTranspose2d(4, 8, 2, groups=4),
        torch.nn.ConvTranspose2d(8, 3, 2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    )
    x = torch.randn(2, 1, 6, 6, generator=KEY.torch())
    m = axes_of(net, x).model
    assert m.groups == {"0": 4} and m.axes["1.gamma"] == (None, Axis("0"), None, None)
    p = scrambled(m, KEY)
    wide, q = widen(m, p, {"0": 7}, KEY)
    assert near(said(wide, q, x.double()), said(m, p, x.double()))
    assert torch.equal(q["1.gamma"][:, 4:], p["1.gamma"][:, :3]) and torch.equal(q["2.weight"][4:], p["2.weight"][:3])
