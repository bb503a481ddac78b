"""The laws of the zoo: every axes table is right, every piece runs, and every count is the slimmer net's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedquilt.cover import Axis, Params, count_units, take
from fedquilt.model import Model
from fedquilt.models import MODELS, BatchNorm, GroupNorm, build, cnn, resnet18
from fedquilt.models.lstm import LSTM
from fedquilt.term import call

from .nets import FAMILIES, KEY, NAMED, Family, Sizes, learn, loss_of, near, said, scrambled


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def moved(m: Model, p: Params, group: str) -> Params:
    """The same net with the units of one group in another order (a cycle: no unit stays), by this file's own code."""
    out = {}
    for k, t in p.items():
        for d, a in enumerate(m.axes.get(k, ())):
            if a is not None and a.group == group:
                units = t.shape[d] // (a.block * a.repeat)
                t = t.unflatten(d, (a.repeat, units, a.block)).roll(1, d + 1).flatten(d, d + 2)
        out[k] = t.contiguous()
    return out


def lawful(m: Model, p: Params, group: str, x: Tensor, y: Tensor, training: bool) -> bool:
    """Does the group's order leave the function unchanged, and move gradient and statistics along?"""
    out, grads, held = learn(m, p, x, y, training)
    out2, grads2, held2 = learn(m, moved(m, p, group), x, y, training)
    after, after2 = moved(m, grads | held, group), grads2 | held2
    return near(out, out2) and all(near(after[k], after2[k]) for k in after)


# ---- the axes tables
def test_permuting_the_units_of_a_group_changes_nothing(family: Family) -> None:
    m = build(family.spec, KEY)
    p, (x, y) = scrambled(m, KEY), family.inputs(KEY)
    assert all(n > 1 for n in m.groups.values())
    for group in m.groups:
        assert not all(torch.equal(v, p[k]) for k, v in moved(m, p, group).items())
        for training in (False, True):
            assert lawful(m, p, group, x, y, training), group


def wrong_tables(m: Model) -> Iterator[tuple[str, str, Model]]:
    """Every table with one entry forgotten, or with block and repeat exchanged."""
    for k, row in m.axes.items():
        for d, a in enumerate(row):
            if a is None:
                continue
            wrong = [None] if a.block == a.repeat else [None, Axis(a.group, a.repeat, a.block)]
            for bad in wrong:
                table = {**m.axes, k: (*row[:d], bad, *row[d + 1 :])}
                yield f"{k}[{d}] as {bad}", a.group, replace(m, axes=table)


def test_a_wrong_table_is_caught(family: Family) -> None:
    m = build(family.spec, KEY)
    p, (x, y) = scrambled(m, KEY), family.inputs(KEY)
    tables = list(wrong_tables(m))
    assert len(tables) >= 6
    for what, group, bad in tables:
        assert not lawful(bad, p, group, x, y, training=False), what


def test_units_are_what_a_cover_was_made_of(family: Family) -> None:
    m = build(family.spec, KEY)
    for draw in range(6):
        key = KEY.at(draw)
        units = {
            g: key.at(g).permutation(n)[: 1 + int(key.at(g, "n").uniform() * n)].sort().values
            for g, n in m.groups.items()
        }
        got = m.units(m.cover(units))
        assert got.keys() == units.keys() and all(torch.equal(got[g], u) for g, u in units.items())


# ---- the pieces
def pieces(m: Model) -> Iterator[tuple[Sizes, object]]:
    for r in (0.2, 0.4, 0.6, 0.8, 1.0):
        sizes = {g: count_units(r, n) for g, n in m.groups.items()}
        yield sizes, m.prefix(r)
        yield sizes, m.cover({g: KEY.at(r, g).permutation(n)[: sizes[g]].sort().values for g, n in m.groups.items()})


def test_a_piece_is_the_slimmer_net_and_trains(family: Family) -> None:
    m = build(family.spec, KEY)
    p, (x, y) = scrambled(m, KEY), family.inputs(KEY)
    for sizes, cover in pieces(m):
        slim = build({**family.spec, **family.slim(sizes)}, KEY)
        assert slim.groups == sizes
        assert m.count(cover) == slim.count() == sum(v.numel() for v in slim.net.parameters())
        piece = take(p, cover)
        assert {k: tuple(v.shape) for k, v in piece.items()} == dict(slim.shapes)
        out, grads, held = learn(m, piece, x, y, training=True)
        expected = learn(slim, piece, x, y, training=True)
        assert torch.equal(out, expected[0])
        assert all(torch.equal(g, expected[1][k]) and bool(g.isfinite().all()) for k, g in grads.items())
        assert all(torch.equal(v, expected[2][k]) for k, v in held.items())


def test_stages_and_head_are_modules_that_give_tensors(family: Family) -> None:
    m = build(family.spec, KEY)
    x, _ = family.inputs(KEY)
    out = call(m.net, scrambled(m, KEY), x, (*m.stages, m.head))
    assert m.stages and all(len(out.features[s]) == len(x) for s in m.stages)
    assert torch.equal(out.features[m.head], out.logits)
    assert f"{m.head}.bias" in m.shapes and f"{m.head}.bias" not in m.axes
    assert m.axes.get(f"{m.head}.weight", (None,))[0] is None


# ---- building
def test_building_is_repeatable_and_leaves_torchs_generator_alone(family: Family) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a, b, c = build(family.spec, KEY), build(family.spec, KEY), build(family.spec, KEY.at("else"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    p, q, r, s = (m.params() for m in (a, b, c, build(family.spec, KEY)))
    assert all(torch.equal(v, q[k]) and torch.equal(v, s[k]) for k, v in p.items())
    assert not all(torch.equal(v, r[k]) for k, v in p.items())


def test_a_spec_builds_the_same_net_again(family: Family) -> None:
    m = build(family.spec, KEY)
    assert m.name == m.spec["name"] == family.spec["name"] and m.spec.keys() >= family.spec.keys()
    text = json.loads(json.dumps(dict(m.spec)))
    again = build(text, KEY)
    assert text == m.spec == again.spec
    assert again.axes == m.axes and again.stages == m.stages
    p, q = m.params(), again.params()
    assert p.keys() == q.keys() and all(torch.equal(v, q[k]) for k, v in p.items())


def test_every_model_of_the_zoo_is_tested_and_named_by_its_builder() -> None:
    tested = {f.spec["name"] for f in FAMILIES.values()}
    assert tested | NAMED == set(MODELS) and not tested & NAMED
    assert all(builder.__name__ == name for name, builder in MODELS.items())


@pytest.mark.parametrize(
    ("spec", "say"),
    [
        ({"name": "resnet"}, "no model is called 'resnet'; the nearest is 'resnet18'"),
        ({"name": "cnn", "kernal": 3}, "the model cnn has no setting 'kernal'; the nearest is 'kernel'"),
        ({"conv": (3,)}, "says its name"),
        ({"name": "cnn", "norm": "layer"}, "no normalisation is called 'layer'"),
        ({"name": "cnn", "norm": "group", "conv": (6,)}, "6 channels are no multiple of a norm group's 4"),
        ({"name": "cnn", "input": (1, 4, 4), "conv": (4, 4, 4)}, "too small: nothing is left of it behind conv3"),
        ({"name": "lstm", "tied": True}, "256 is not 8"),
        ({"name": "lstm", "hidden": ()}, "one layer at least"),
        ({"name": "resnet18", "blocks": (2, 2)}, "one positive number a stage each"),
    ],
)
def test_a_spec_that_cannot_be_built_is_explained(spec: dict[str, object], say: str) -> None:
    with pytest.raises(ValueError, match=say):
        build(spec, KEY)


# ---- normalisation
def twins(channels: int, dim: int) -> tuple[BatchNorm, nn.Module]:
    ours = BatchNorm(channels)
    theirs = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[dim](channels)
    g = KEY.at("twins").torch()
    start = {k: torch.rand(channels, generator=g) + 0.5 for k in ours.state_dict()}
    ours.load_state_dict(start)
    theirs.load_state_dict(start, strict=False)
    return ours, theirs


@pytest.mark.parametrize("shape", [(7, 5), (2, 5), (7, 5, 3), (1, 5, 3), (7, 5, 3, 4), (1, 5, 1, 2)])
def test_batch_norm_is_torchs_bit_for_bit(shape: tuple[int, ...]) -> None:
    ours, theirs = twins(5, len(shape))
    for training in (True, True, False):
        x = torch.randn(shape, generator=KEY.at(training).torch())
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = ours.train(training)(a), theirs.train(training)(b)
        assert torch.equal(y, z)
        grads = torch.autograd.grad(y.pow(3).sum(), [a, ours.weight, ours.bias])
        for g, h in zip(grads, torch.autograd.grad(z.pow(3).sum(), [b, theirs.weight, theirs.bias]), strict=True):
            assert torch.equal(g, h)
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert torch.equal(ours.running_var, theirs.running_var)
    assert ours.state_dict().keys() == theirs.state_dict().keys() - {"num_batches_tracked"}


@pytest.mark.parametrize("shape", [(1, 5), (1, 5, 1), (1, 5, 1, 1)])
def test_one_value_a_channel_is_normalised_with_the_running_statistics(shape: tuple[int, ...]) -> None:
    ours, theirs = twins(5, len(shape))
    held = {k: v.clone() for k, v in ours.named_buffers()}
    x = torch.randn(shape)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        theirs.train()(x)
    assert torch.equal(ours.train()(x), theirs.eval()(x))
    assert all(torch.equal(v, held[k]) for k, v in ours.named_buffers())
    stacked = {k: torch.stack([v, 2 * v]) for k, v in ours.state_dict().items()}
    torch.func.vmap(lambda p, z: functional_call(ours, p, (z,)))(stacked, torch.stack([x, x]))
    assert torch.equal(stacked["running_mean"], torch.stack([held["running_mean"], 2 * held["running_mean"]]))


def test_group_norm_is_torchs_and_its_groups_do_not_see_each_other() -> None:
    ours, theirs = GroupNorm(3, 12), nn.GroupNorm(4, 12)
    start = {k: torch.randn(12, generator=KEY.at(k).torch()) for k in ours.state_dict()}
    theirs.load_state_dict(start)
    for shape in [(2, 12), (2, 12, 5), (2, 12, 5, 4)]:
        x = torch.randn(shape, generator=KEY.at(shape).torch())
        whole = functional_call(ours, start, (x,))
        assert torch.equal(whole, theirs(x))
        for groups in ([0], [1, 3], [0, 2, 3]):
            kept = Axis("c", block=3).entries(torch.tensor(groups), 12)
            piece = functional_call(ours, {k: v[kept] for k, v in start.items()}, (x[:, kept],))
            assert near(piece, whole[:, kept], 6)
    assert GroupNorm(1, 12)(torch.randn(1, 12)).abs().max() < 1e-4  # one value a group: its mean, not an error


@pytest.mark.parametrize("build_net", [cnn, resnet18])
def test_a_last_batch_of_one_trains(build_net: Callable[..., Model]) -> None:
    small = {"conv": (8, 8)} if build_net is cnn else {"widths": (8, 8), "blocks": (1, 1)}
    for norm in ("batch", "group"):
        m = build_net(input=(1, 4, 4), classes=3, norm=norm, **small)
        m.net.train()
        F.cross_entropy(m.net(torch.randn(1, 1, 4, 4)), torch.tensor([1])).backward()
        assert all(bool(v.isfinite().all()) for v in m.net.state_dict().values())
        assert all(bool(v.grad.isfinite().all()) for v in m.net.parameters())


# ---- recurrence
@pytest.mark.parametrize(("inputs", "hidden"), [(3, 4), (6, 2)])
def test_the_lstm_is_torchs(inputs: int, hidden: int) -> None:
    ours, theirs = LSTM(inputs, hidden), nn.LSTM(inputs, hidden, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 7, inputs, generator=KEY.torch())
    y, (z, _) = ours(x), theirs(x)
    assert near(y, z, 5)
    mine = torch.autograd.grad(y.pow(2).sum(), list(ours.parameters()))
    for g, h in zip(mine, torch.autograd.grad(z.pow(2).sum(), list(theirs.parameters())), strict=True):
        assert near(g, h, 5)


def test_a_tied_decoder_is_the_embedding() -> None:
    m = build(FAMILIES["lstm-tied"].spec, KEY)
    p, (x, _) = scrambled(m, KEY), FAMILIES["lstm-tied"].inputs(KEY)
    out = call(m.net, p, x, m.stages)
    assert near(out.logits, out.features["lstm2"] @ p["embed.weight"].T + p["head.bias"])
    assert {k for k in m.shapes if not k.startswith(("lstm", "exits"))} == {"embed.weight", "head.bias"}


# ---- many clients at once
@pytest.mark.parametrize("training", [True, False])
def test_stacked_nets_run_under_vmap(family: Family, strict_vmap: None, training: bool) -> None:
    m = build(family.spec, KEY)
    clients = [scrambled(m, KEY.at(i)) for i in range(3)]
    data = [family.inputs(KEY.at(i)) for i in range(3)]
    alone = [learn(m, p, *xy, training) for p, xy in zip(clients, data, strict=True)]
    free = {k: torch.stack([p[k] for p in clients]).requires_grad_() for k in m.trainable}
    held = {k: torch.stack([p[k] for p in clients]) for k in m.shapes if k not in free}

    def loss(free: Params, held: Params, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(said(m, free | held, x), y)

    x, y = (torch.stack(part) for part in zip(*data, strict=True))
    total = torch.func.vmap(loss)(free, held, x, y).sum()
    grads = dict(zip(free, torch.autograd.grad(total, list(free.values())), strict=True))
    for i, (_, one, statistics) in enumerate(alone):
        assert all(near(grads[k][i], g) for k, g in one.items())
        assert all(near(held[k][i], v) for k, v in statistics.items())
        assert not training or all(not torch.equal(v, clients[i][k]) for k, v in statistics.items())
