"""The generator of axes tables finds the zoo's own, those of ten nets that are not ours, and says what it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.cover import Axis, take
from fedquilt.data import Dataset, deal, iid
from fedquilt.data.ready import Prepare
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.model import Model, model
from fedquilt.models import build
from fedquilt.task import Classification
from fedquilt.term import call
from fedquilt.trace import Found, Untraceable, axes_of, batch
from fedquilt.trace.check import broken

from .. import foreign
from ..world import Family, of, play, small
from .nets import FAMILIES, KEY, NAMED, near, scrambled
from .test_sizes import WHOLE


@dataclass(frozen=True)
class Foreign:
    """A net that is not ours, its sample, and how many units each of its groups has."""

    net: Callable[[], nn.Module]
    shape: tuple[int, ...]
    groups: dict[str, int]
    head: str
    dtype: torch.dtype = torch.float32


IMAGE = (1, 8, 8)
BRANCHES = ("bottleneck", "branches.0", "branches.1", "branches.2", "pooled")
NETS = {
    "mobilenet": Foreign(
        foreign.MobileNet,
        IMAGE,
        {"stem.0": 6, "blocks.0.body.0": 12, "blocks.0.body.6": 8, "blocks.1.body.0": 16}
        | {"blocks.2.body.0": 16, "blocks.2.body.6": 10},
        "classifier.1",
    ),
    "densenet": Foreign(
        foreign.DenseNet,
        IMAGE,
        {"stem": 6, "block1.0.conv": 4, "block1.1.conv": 4, "between.2": 8, "block2.0.conv": 4, "block2.1.conv": 4},
        "fc",
    ),
    "squeeze": Foreign(foreign.SENet, IMAGE, {"conv1": 4, "se1.less": 4, "se2.less": 4}, "fc"),
    "unet": Foreign(
        foreign.UNet,
        IMAGE,
        {"down1.0": 6, "down2.0": 10, "bottom.0": 12, "up2": 10, "fuse2.0": 10, "fuse1.0": 6},
        "out",
    ),
    "gru": Foreign(foreign.TextGRU, (7,), {"words": 6, "gru": 5}, "out", torch.int64),
    "inception": Foreign(foreign.InceptionTime, (3, 16), {f"block{i}.{b}": 4 for i in (1, 2) for b in BRANCHES}, "fc"),
    "two-tower": Foreign(foreign.TwoTower, (16,), {"left.0": 10, "left.2": 6, "right.0": 8, "mix": 8}, "fc"),
    "shared": Foreign(foreign.Shared, (16,), {"encode": 6}, "fc"),
    "baked-in": Foreign(foreign.BakedIn, IMAGE, {"conv1": 6, "hidden": 10}, "fc"),
    "grouped": Foreign(foreign.Grouped, IMAGE, {"conv1": 4, "conv3": 6}, "fc"),
}


@cache
def found(name: str) -> Found:
    case = NETS[name]
    net = case.net()
    return axes_of(net, batch(case.shape, case.dtype, net))


def traced(net: nn.Module, *shape: int) -> Found:
    return axes_of(net, batch(shape, torch.float32, net))


# ---- the zoo's tables are found again
@pytest.mark.parametrize("name", [n for n, f in FAMILIES.items() if "depth" not in f.spec])
def test_the_table_of_a_net_of_the_zoo_is_found(name: str) -> None:
    family = FAMILIES[name]
    m = build({**family.spec, "exits": False}, KEY)
    x, _ = family.inputs(KEY)
    got = axes_of(m.net, x if family.tokens else x.float())
    assert not {k: v for k, v in got.whole.items() if k in m.axes}
    names: dict[str, str] = {}
    assert got.axes.keys() == m.axes.keys() and got.model.head in ("head", "embed")
    for k, row in m.axes.items():
        for ours, theirs in zip(row, got.axes[k], strict=True):
            if ours is None:
                assert theirs is None, k
            else:
                assert isinstance(ours, Axis) and isinstance(theirs, Axis), k
                assert (theirs.block, theirs.repeat) == (ours.block, ours.repeat), k
                assert names.setdefault(ours.group, theirs.group) == theirs.group
    assert len({*names.values()}) == len(names) == len(m.groups)


@pytest.mark.parametrize("name", sorted(NAMED | {"vgg11", "motion_cnn", "resnet18"}))
def test_the_papers_nets_keep_both_laws_at_their_own_size(name: str) -> None:
    """With their own settings, but for the channels of the large ones and the words."""
    large = {"scale": 1 / 32} if name.startswith(("vgg", "motion")) else {}
    settings = {"resnet18": {"widths": (4, 6, 8, 10)}, "reddit_lstm": {"vocabulary": 20}}.get(name, large)
    m = build({"name": name, **settings}, KEY)
    shape = tuple(WHOLE[name]["sample"])
    x = torch.randint(20, (2, 4)) if name == "reddit_lstm" else torch.randn(2, *shape, generator=KEY.torch())
    assert m.groups and not broken(m, x)


# ---- ten nets of others
@pytest.mark.parametrize("name", NETS)
def test_the_groups_of_a_foreign_net_are_those_that_its_shape_has(name: str) -> None:
    got = found(name)
    assert got.model.groups == NETS[name].groups and got.model.head == NETS[name].head
    assert got.whole.keys() == ({"conv2"} if name == "baked-in" else set())


@pytest.mark.parametrize("name", NETS)
def test_a_found_table_keeps_the_laws(name: str) -> None:
    """By this test's own code, with gradients, and in training."""
    case, m = NETS[name], found(name).model
    p = scrambled(m, KEY)
    x = batch(case.shape, case.dtype, m.net)
    x = x.double() if x.is_floating_point() else x
    for group, n in m.groups.items():
        order, moved = torch.arange(n).roll(1), dict(p)
        for place in m.places:
            if place.axis.group == group:
                at = torch.arange(moved[place.name].shape[place.dim])
                at[place.entries(torch.arange(n))] = place.entries(order)
                moved[place.name] = moved[place.name].index_select(place.dim, at)
        assert not all(torch.equal(v, p[k]) for k, v in moved.items())
        m.net.eval()
        assert near(call(m.net, p, x).logits, call(m.net, moved, x).logits), group
    for r in (0.2, 0.5, 0.8):
        piece = {k: v.requires_grad_(k in m.trainable) for k, v in take(p, m.prefix(r)).items()}
        m.net.train()
        out = call(m.net, piece, x).logits
        out.square().sum().backward()
        assert out.shape == (2, 4) and m.count(m.prefix(r)) == sum(piece[k].numel() for k in m.trainable)
        assert all(bool(piece[k].grad.isfinite().all()) for k in m.trainable if piece[k].grad is not None)


@pytest.mark.parametrize("name", NETS)
def test_a_table_with_a_row_forgotten_breaks_a_law(name: str) -> None:
    case, m = NETS[name], found(name).model
    x = batch(case.shape, case.dtype, m.net)
    assert not broken(m, x)
    for k in list(m.axes)[::7]:
        less = {n: row for n, row in m.axes.items() if n != k}
        try:
            bad = replace(m, axes=less)
        except ValueError:
            continue  # refused at once: its groups stand nowhere else alone
        assert broken(bad, x), k


@pytest.mark.parametrize("method", ["fedspu", "heterofl", "fedper"])
@pytest.mark.parametrize("name", NETS)
def test_a_foreign_net_runs(name: str, method: str) -> None:
    case, m = NETS[name], found(name).model
    key = Key(3)
    g = key.torch()
    y = torch.randint(4, (36,), generator=g)
    words = case.dtype == torch.int64
    x = torch.randint(12, (36, *case.shape), generator=g) if words else torch.randn(36, *case.shape, generator=g)
    task = Classification(4)
    data = Dataset("tiny", x, y, task, case.shape, 4, Prepare(tokens=words))
    shards = deal(data, 3, iid, key.at("deal"), (0.6, 0.2, 0.2))
    sim = of(small(METHODS[method]), Family({}, task, case.shape), shards, key, (0.4, 0.7, 1.0), model=m)
    now, told = play(sim, 2)
    assert told[-1].record["merged"] == [0, 1, 2]
    assert all(bool(v.isfinite().all()) for v in now.state.params.values())
    assert any(not torch.equal(v, m.params()[k]) for k, v in now.state.params.items())


# ---- what it cannot place, in words
class Odd(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(4, 6), nn.Linear(6, 8), nn.Linear(8, 2)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.between(self.one(x))).relu())


@pytest.mark.parametrize(
    ("between", "say"),
    [
        (lambda h: torch.fft.fft(h).real, "no rule says what fft_fft does to units"),
        (lambda h: h @ torch.ones(6, 6).triu(), "meets entries that no unit can move"),
        (lambda h: h.cumsum(1), "depends on the order of the units"),
        (lambda h: h + torch.arange(6.0), "meets entries that no unit can move"),
        (lambda h: F.avg_pool1d(h, 3, 1, 1), "puts neighbours together, and here they are units"),
    ],
)
def test_what_keeps_a_layer_whole_is_said(between: Callable[[Tensor], Tensor], say: str) -> None:
    got = traced(Odd(between), 4)
    assert got.model.groups == {"two": 8}
    [(name, why)] = got.whole.items()
    assert name == "one.weight" and say in why and "test_axes.py line" in why


def test_a_reshape_that_says_sizes_is_named_with_its_line() -> None:
    [(name, why)] = found("baked-in").whole.items()
    assert name == "conv2" and "the net does not run on fewer of its units" in why
    assert "`x = x.view(-1, 8 * 4 * 4)`" in why and "foreign.py line" in why


class Shuffled(nn.Module):
    """Channels dealt out like cards between two grouped convolutions, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(2, 8, 1)
        self.two, self.three = nn.Conv1d(8, 8, 1, groups=2), nn.Conv1d(8, 8, 1, groups=2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.one(x))
        x = x.view(len(x), 2, 4, -1).transpose(1, 2).flatten(1, 2)
        return self.fc(self.three(x).mean(-1))


def test_a_ring_of_units_is_not_a_group() -> None:
    """The size of a spectrum does not change when all units move on by one, but when two change places."""

    class Ring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.last = nn.Linear(4, 6), nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.fft.fft(self.one(x)).abs().pow(4).sum(1, keepdim=True))

    a = Axis("one")
    m = model(Ring(), {"one.weight": (a, None), "one.bias": (a,)}, "last")
    x = torch.randn(2, 4, generator=KEY.torch())
    assert "another order of its units changes what the net says" in broken(m, x)["one"]


def test_what_mixes_groups_is_left_whole() -> None:
    got = traced(Shuffled(), 2, 5)
    assert not got.axes
    assert any("is a convolution of groups" in why for why in got.whole.values())


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else x


class Two(Late):
    def forward(self, x: Tensor) -> Any:
        return self.fc(x), x


@pytest.mark.parametrize(("net", "say"), [(Late(), "Late cannot be traced"), (Two(), "gives 2 tensors, not one")])
def test_a_net_that_cannot_be_traced_is_refused_with_the_reason(net: nn.Module, say: str) -> None:
    with pytest.raises(Untraceable, match=say):
        traced(net, 4)


def test_attention_of_torchs_own_is_cut_by_heads() -> None:
    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3, 8)
            self.place = nn.Parameter(torch.randn(1, 9, 8))
            self.layer = nn.TransformerEncoderLayer(8, 4, 12, batch_first=True)
            self.fc = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x) + self.place[:, : x.shape[1]]
            return self.fc(self.layer(x).mean(1))

    got = traced(Attentive(), 5, 3)
    assert got.model.groups == {"embed": 8, "layer.self_attn": 4, "layer.linear1": 12} and not got.whole
    assert got.axes["layer.self_attn.in_proj_weight"] == (Axis("layer.self_attn", 2, 3), Axis("embed"))


class Tokens(nn.Module):
    """An image transformer's beginning and end: a token of the class before the patches, read alone at last."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        self.attention, self.norm = nn.MultiheadAttention(8, 4, batch_first=True), nn.LayerNorm(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        y = self.norm(x)
        return self.fc((x + self.attention(y, y, y, need_weights=False)[0])[:, 0])


class Experts(nn.Module):
    """A gate says how much each of several layers counts; one half of the first layer lets the other through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(4, 10), nn.Linear(5, 3)
        self.experts = nn.ModuleList(nn.Linear(5, 6) for _ in range(3))
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.glu(self.first(x))
        said = torch.stack([expert(x) for expert in self.experts], 1)
        return self.fc((self.gate(x).softmax(-1).unsqueeze(-1) * said).sum(1))


def test_what_stands_beside_each_other_is_of_the_same_units() -> None:
    got = traced(Tokens(), 1, 8, 8)
    assert got.model.groups == {"patches": 8, "attention": 4} and not got.whole
    assert got.axes["token"] == got.axes["place"] == (None, None, Axis("patches"))
    got = traced(Experts(), 4)
    assert got.model.groups == {"first": 5, "experts.0": 6} and not got.whole
    assert got.axes["first.weight"] == (Axis("first", repeat=2), None) and got.axes["gate.weight"] == (
        None,
        Axis("first"),
    )
    assert all(got.axes[f"experts.{i}.weight"] == (Axis("experts.0"), Axis("first")) for i in range(3))


def test_the_head_is_the_layer_that_makes_the_outputs() -> None:
    class Alike(nn.Linear):
        """Scores by angle: its weights are not used as they are."""

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(F.normalize(x), F.normalize(self.weight))

    def layers(*rest: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv1d(2, 6, 1), nn.ReLU(), nn.Conv1d(6, 8, 1), nn.ReLU(), *rest)

    assert traced(layers(nn.ConvTranspose1d(8, 3, 2)), 2, 5).model.head == "4"
    got = traced(layers(nn.Flatten(), nn.Linear(40, 7), Alike(7, 3)), 2, 5)
    assert got.model.head == "6" and got.model.groups == {"0": 6, "2": 8}
    assert "joins units that meet there" in got.whole["5.weight"]
    with pytest.raises(Untraceable, match="the net has no layer with weights"):
        traced(nn.Flatten(), 2, 5)


def test_the_reason_is_that_of_the_operation_that_no_rule_is_for() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.hidden, self.fc = nn.EmbeddingBag(12, 6), nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.hidden(self.bag(x)).relu())

    net = Words()
    got = axes_of(net, batch((7,), torch.int64, net))
    [(name, why)] = got.whole.items()
    assert got.model.groups == {"hidden": 5} and name == "bag.weight"
    assert why.startswith("bag (EmbeddingBag), test_axes.py line") and why.endswith("embedding_bag does to units")


def test_tracing_leaves_the_net_and_the_generator_as_they_were() -> None:
    net = foreign.MobileNet()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    traced(net, *IMAGE)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_model_needs_the_name_of_its_head() -> None:
    with pytest.raises(ValueError, match=r"the net has no layer 'head' that makes the outputs: say head=..., one of"):
        model(foreign.Shared(), {})
    assert isinstance(model(foreign.Shared(), {}, "fc"), Model)
